//! Requests that are not answered: of other methods, by names that are not this server's, and without the token.

use std::net::{IpAddr, SocketAddr};

use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, Method, StatusCode, Uri};

use super::{File, SHARED};

/// Conditions of an answer.
#[derive(Clone, Debug)]
pub struct Guard {
    /// Names by which the server may be called, beside addresses and `localhost`.
    pub names: Vec<String>,
    /// Token that a request must carry, except for files. It is in a header, which no page of another server can set
    /// here and no browser sends by itself.
    pub token: Option<String>,
    /// Files of the page. They need no token, because the page that they make sends it.
    pub files: &'static [File],
    /// Command that prints the address with the token.
    pub command: &'static str,
    /// Whether orders (POST) are taken; they need the token.
    pub takes_orders: bool,
    /// WebSocket that is offered.
    pub socket: Option<WebSocket>,
}

/// WebSocket: the one request that browsers send for a page of any server, and without headers of the page's.
#[derive(Clone, Copy, Debug)]
pub struct WebSocket {
    /// Its path. The token may be in the query there.
    pub path: &'static str,
    /// Origins of pages of others that may open it where there is no token. Every page may with the token.
    pub origins: &'static [&'static str],
}

impl Guard {
    /// Whether a request carries the token, or `session`, which a page got for it. The refusal has the reason in words.
    pub(super) fn check(
        &self,
        session: &str,
        (method, uri): (&Method, &Uri),
        headers: &HeaderMap,
    ) -> Result<bool, (StatusCode, String)> {
        let is_order = method == Method::POST && self.takes_orders;
        if method != Method::GET && !is_order {
            let why = match self.takes_orders {
                true => "only GET and POST are answered\n",
                false => "only GET is answered\n",
            };
            return Err((StatusCode::METHOD_NOT_ALLOWED, why.to_owned()));
        }
        if !self.is_known(headers) {
            return Err((
                StatusCode::MISDIRECTED_REQUEST,
                "this server is not called so: use its address, or name it with --host\n"
                    .to_owned(),
            ));
        }
        let path = uri.path();
        let socket = self.socket.filter(|socket| socket.path == path);
        let Some(token) = &self.token else {
            let is_foreign = socket.is_some_and(|socket| !socket.is_open_to(headers));
            let why = match (is_order, is_foreign) {
                (true, _) => "orders need a token\n",
                (_, true) => "pages of other servers need a token\n",
                _ => return Ok(false),
            };
            return Err((StatusCode::FORBIDDEN, why.to_owned()));
        };
        let query = uri.query().filter(|_| socket.is_some());
        let in_query = |wanted: &str| {
            let given = query.unwrap_or_default().split('&');
            { given }.any(|pair| is_same(pair.strip_prefix("token=").unwrap_or_default(), wanted))
        };
        let is_shown = [token, session]
            .into_iter()
            .any(|wanted| carries(headers, wanted) || in_query(wanted));
        let mut files = self.files.iter().chain(SHARED);
        if !is_shown && (is_order || !files.any(|file| file.0 == path)) {
            return Err((
                StatusCode::UNAUTHORIZED,
                format!(
                    "open the address that `{}` has printed, with its token\n",
                    self.command
                ),
            ));
        }
        Ok(is_shown)
    }

    /// Whether the request is for this server. A page of a stranger whose name leads here (DNS rebinding) has that name
    /// in its requests; an address cannot be turned to another machine.
    fn is_known(&self, headers: &HeaderMap) -> bool {
        let mut hosts = headers.get_all(HOST).iter();
        let (Some(host), None) = (
            hosts.next().and_then(|host| host.to_str().ok()),
            hosts.next(),
        ) else {
            return false;
        };
        if host.parse::<SocketAddr>().is_ok() || host.parse::<IpAddr>().is_ok() {
            return true;
        }
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let is_address = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'));
        is_address.is_some_and(|address| address.parse::<IpAddr>().is_ok())
            || name.eq_ignore_ascii_case("localhost")
            || self
                .names
                .iter()
                .any(|known| known.eq_ignore_ascii_case(name))
    }
}

impl WebSocket {
    /// Whether a request without a token may open it: from a program, which sends no origin, or from one of the pages.
    fn is_open_to(&self, headers: &HeaderMap) -> bool {
        headers.get_all(ORIGIN).iter().all(|origin| {
            let mut allowed = self.origins.iter();
            allowed.any(|allowed| origin.as_bytes() == allowed.as_bytes())
        })
    }
}

fn carries(headers: &HeaderMap, token: &str) -> bool {
    let given = headers.get_all(AUTHORIZATION).iter();
    let given = given.filter_map(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    { given }.any(|given| is_same(given, token))
}

/// Whether two tokens are the same, in a time that does not tell where they differ.
fn is_same(one: &str, other: &str) -> bool {
    let differences = one.bytes().zip(other.bytes());
    let differences = differences.fold(0, |found, (a, b)| found | (a ^ b));
    one.len() == other.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect()
    }

    fn guard(token: Option<&str>, takes_orders: bool) -> Guard {
        Guard {
            names: vec!["robot.local".to_owned()],
            token: token.map(str::to_owned),
            files: &[("/", "text/html", "")],
            command: "taut serve",
            takes_orders,
            socket: Some(WebSocket {
                path: "/socket",
                origins: &["https://viewer.example"],
            }),
        }
    }

    fn status_at(guard: &Guard, at: (&Method, &str), pairs: &[(&'static str, &str)]) -> u16 {
        let uri = at.1.parse().unwrap();
        let checked = guard.check("session", (at.0, &uri), &headers(pairs));
        checked.map_or_else(|(status, _)| status.as_u16(), |_| 200)
    }

    fn status(guard: &Guard, method: Method, pairs: &[(&'static str, &str)]) -> u16 {
        status_at(guard, (&method, "/look.json"), pairs)
    }

    #[test]
    fn names_of_strangers_are_refused() {
        let guard = guard(None, false);
        let known = [
            "127.0.0.1:8080",
            "localhost",
            "LOCALHOST:8080",
            "[::1]:8080",
            "[::1]",
            "10.0.0.3",
            "robot.local:1",
        ];
        for host in known {
            assert_eq!(
                status(&guard, Method::GET, &[("host", host)]),
                200,
                "{host}"
            );
        }
        for host in [
            "evil.example",
            "localhost.evil.example:8080",
            "127.0.0.1.evil.example",
            "",
            "robot.local.:1",
        ] {
            assert_eq!(
                status(&guard, Method::GET, &[("host", host)]),
                421,
                "{host}"
            );
        }
        assert_eq!(status(&guard, Method::GET, &[]), 421, "no name");
    }

    #[test]
    fn other_methods_and_wrong_tokens_are_refused() {
        let guard = guard(Some("secret"), false);
        let host = ("host", "10.0.0.1");
        for method in [Method::POST, Method::HEAD, Method::PUT, Method::OPTIONS] {
            assert_eq!(status(&guard, method, &[host]), 405);
        }
        let get = |pair| status(&guard, Method::GET, &[host, pair]);
        assert_eq!(get(("accept", "*/*")), 401);
        assert_eq!(get(("authorization", "Bearer secret")), 200);
        assert_eq!(get(("authorization", "Bearer secre")), 401);
        assert_eq!(get(("authorization", "secret")), 401);
        assert_eq!(get(("authorization", "Bearer session")), 200);
        // Browsers send cookies to every port of an address, and a page of any port can set them.
        assert_eq!(get(("cookie", "taut=secret")), 401);
        let page = |pairs: &[(&'static str, &str)]| {
            let at = (&Method::GET, &Uri::from_static("/"));
            let checked = guard.check("session", at, &headers(pairs));
            checked.unwrap()
        };
        assert!(!page(&[host]), "a page without the token proves nothing");
        assert!(page(&[host, ("authorization", "Bearer secret")]));
    }

    #[test]
    fn a_socket_is_opened_with_the_token_or_by_no_foreign_page() {
        let host = ("host", "127.0.0.1:8080");
        let at = |guard: &Guard, path, pairs: &[_]| status_at(guard, (&Method::GET, path), pairs);
        let open = guard(None, false);
        assert_eq!(at(&open, "/socket", &[host]), 200, "a program");
        for (origin, status) in [
            ("https://viewer.example", 200),
            ("http://viewer.example", 403),
            ("https://evil.example", 403),
            ("null", 403),
            ("", 403),
        ] {
            let pairs = [host, ("origin", origin)];
            assert_eq!(at(&open, "/socket", &pairs), status, "{origin}");
        }
        let guard = guard(Some("secret"), false);
        let foreign = [host, ("origin", "https://evil.example")];
        for (path, status) in [
            ("/socket", 401),
            ("/socket?token=", 401),
            ("/socket?token=secre", 401),
            ("/socket?x=1&token=secret", 200),
            ("/socket?token=session", 200),
            ("/look.json?token=secret", 401),
        ] {
            assert_eq!(at(&guard, path, &foreign), status, "{path}");
        }
    }

    #[test]
    fn orders_need_the_token() {
        let host = ("host", "127.0.0.1:8081");
        let proof = ("authorization", "Bearer secret");
        let open = guard(None, true);
        assert_eq!(
            status(&open, Method::POST, &[host]),
            403,
            "no token is no permission"
        );
        let guard = guard(Some("secret"), true);
        assert_eq!(status(&guard, Method::POST, &[host]), 401);
        assert_eq!(status_at(&guard, (&Method::POST, "/"), &[host]), 401);
        assert_eq!(status(&guard, Method::POST, &[host, proof]), 200);
        assert_eq!(status(&guard, Method::PUT, &[host, proof]), 405);
    }
}

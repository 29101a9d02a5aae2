//! Requests that are not answered: of other methods, by names that are not this server's, without the token, and orders
//! that another page has sent.

use std::net::{IpAddr, SocketAddr};

use axum::http::header::{AUTHORIZATION, COOKIE, HOST, ORIGIN};
use axum::http::{HeaderMap, Method, StatusCode};

/// Conditions of an answer.
#[derive(Clone, Debug)]
pub struct Guard {
    /// Names by which the server may be called, beside addresses and `localhost`.
    pub names: Vec<String>,
    /// Token that a request must carry.
    pub token: Option<String>,
    /// Name of the cookie that holds the token. Servers on one address share their cookies, whatever their ports.
    pub cookie: &'static str,
    /// Command that prints the address with the token.
    pub command: &'static str,
    /// Whether orders (POST) are taken: from whoever has the token, and from no other server's page.
    pub takes_orders: bool,
}

impl Guard {
    /// Refuses a request; the reason in words.
    pub(super) fn check(
        &self,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<(), (StatusCode, String)> {
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
        match &self.token {
            Some(token) if !carries(headers, self.cookie, token) => Err((
                StatusCode::UNAUTHORIZED,
                format!(
                    "open the address that `{}` has printed, with its token\n",
                    self.command
                ),
            )),
            None if is_order => Err((StatusCode::FORBIDDEN, "orders need a token\n".to_owned())),
            _ if is_order && !is_of_own_page(headers) => Err((
                StatusCode::FORBIDDEN,
                "orders come from this server's own page\n".to_owned(),
            )),
            _ => Ok(()),
        }
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

/// Whether a request comes from a page of this server, or from no page. Browsers send cookies to every port of an
/// address, and name the page's origin in each POST.
fn is_of_own_page(headers: &HeaderMap) -> bool {
    let mut origins = headers.get_all(ORIGIN).iter();
    match (origins.next(), origins.next(), headers.get(HOST)) {
        (None, ..) => true,
        (Some(origin), None, Some(host)) => {
            let origin = origin.to_str().ok();
            let origin = origin.and_then(|origin| origin.strip_prefix("http://"));
            origin.is_some_and(|origin| host.to_str().is_ok_and(|host| host == origin))
        }
        _ => false,
    }
}

fn carries(headers: &HeaderMap, cookie: &str, token: &str) -> bool {
    let text = |value: &axum::http::HeaderValue| value.to_str().ok().map(str::to_owned);
    let bearer = headers.get_all(AUTHORIZATION).iter().filter_map(text);
    let mut bearer = bearer.filter_map(|value| value.strip_prefix("Bearer ").map(str::to_owned));
    let cookies = headers.get_all(COOKIE).iter().filter_map(text);
    let mut cookies = cookies.flat_map(|all| {
        let own = all.split(';').filter_map(|one| {
            let (name, value) = one.trim().split_once('=')?;
            (name == cookie).then(|| value.to_owned())
        });
        own.collect::<Vec<_>>()
    });
    bearer.any(|value| is_same(&value, token)) || cookies.any(|value| is_same(&value, token))
}

/// Whether two tokens are the same, in a time that does not tell where they differ.
pub(super) fn is_same(one: &str, other: &str) -> bool {
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
            cookie: "taut",
            command: "taut serve",
            takes_orders,
        }
    }

    fn status(guard: &Guard, method: Method, pairs: &[(&'static str, &str)]) -> u16 {
        let checked = guard.check(&method, &headers(pairs));
        checked.map_or_else(|(status, _)| status.as_u16(), |()| 200)
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
        assert_eq!(get(("cookie", "other=1; taut=secret")), 200);
        assert_eq!(get(("cookie", "taut=secretx")), 401);
    }

    #[test]
    fn orders_need_the_token_and_a_page_of_this_server() {
        let host = ("host", "127.0.0.1:8081");
        let proof = ("cookie", "taut=secret");
        let post =
            |guard: &Guard, pairs: &[(&'static str, &str)]| status(guard, Method::POST, pairs);
        let open = guard(None, true);
        assert_eq!(post(&open, &[host]), 403, "no token is no permission");
        let guard = guard(Some("secret"), true);
        assert_eq!(post(&guard, &[host]), 401);
        assert_eq!(post(&guard, &[host, proof]), 200, "no browser");
        for (origin, expected) in [
            ("http://127.0.0.1:8081", 200),
            // A stranger's server on the same machine: the browser sends it the same cookies.
            ("http://127.0.0.1:9999", 403),
            ("http://evil.example", 403),
            ("https://127.0.0.1:8081", 403),
            ("null", 403),
        ] {
            let answer = post(&guard, &[host, proof, ("origin", origin)]);
            assert_eq!(answer, expected, "{origin}");
        }
        let twice = [
            host,
            proof,
            ("origin", "http://127.0.0.1:8081"),
            ("origin", "null"),
        ];
        let mut headers = HeaderMap::new();
        for (name, value) in twice {
            headers.append(name, value.parse().unwrap());
        }
        assert!(guard.check(&Method::POST, &headers).is_err());
        assert_eq!(status(&guard, Method::PUT, &[host, proof]), 405);
    }
}

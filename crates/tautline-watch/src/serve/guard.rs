//! Requests that are not answered: of other methods, by names that are not this server's, and without the token.

use std::net::{IpAddr, SocketAddr};

use axum::http::header::{AUTHORIZATION, COOKIE, HOST};
use axum::http::{HeaderMap, Method, StatusCode};

/// Name of the cookie that holds the token.
pub(super) const COOKIE_NAME: &str = "taut";

/// Conditions of an answer.
#[derive(Debug)]
pub(super) struct Guard {
    /// Names by which the server may be called, beside addresses and `localhost`.
    pub(super) names: Vec<String>,
    /// Token that a request must carry.
    pub(super) token: Option<String>,
}

impl Guard {
    /// Refuses a request; the reason in words.
    pub(super) fn check(
        &self,
        method: &Method,
        headers: &HeaderMap,
    ) -> Result<(), (StatusCode, &'static str)> {
        if method != Method::GET {
            return Err((StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n"));
        }
        if !self.is_known(headers) {
            return Err((
                StatusCode::MISDIRECTED_REQUEST,
                "this server is not called so: use its address, or name it with --host\n",
            ));
        }
        match &self.token {
            Some(token) if !carries(headers, token) => Err((
                StatusCode::UNAUTHORIZED,
                "open the address that `taut serve` has printed, with its token\n",
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

fn carries(headers: &HeaderMap, token: &str) -> bool {
    let text = |value: &axum::http::HeaderValue| value.to_str().ok().map(str::to_owned);
    let bearer = headers.get_all(AUTHORIZATION).iter().filter_map(text);
    let mut bearer = bearer.filter_map(|value| value.strip_prefix("Bearer ").map(str::to_owned));
    let cookies = headers.get_all(COOKIE).iter().filter_map(text);
    let mut cookies = cookies.flat_map(|all| {
        let own = all.split(';').filter_map(|one| {
            let (name, value) = one.trim().split_once('=')?;
            (name == COOKIE_NAME).then(|| value.to_owned())
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

    fn status(guard: &Guard, method: Method, pairs: &[(&'static str, &str)]) -> u16 {
        let checked = guard.check(&method, &headers(pairs));
        checked.map_or_else(|(status, _)| status.as_u16(), |()| 200)
    }

    #[test]
    fn names_of_strangers_are_refused() {
        let guard = Guard {
            names: vec!["robot.local".to_owned()],
            token: None,
        };
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
        let guard = Guard {
            names: Vec::new(),
            token: Some("secret".to_owned()),
        };
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
}

//! Who may ask: API keys, pages of other sites, names of this server.

use super::{ApiError, Caller, Server};
use axum::{
    extract::{Request, State},
    http::{
        HeaderMap, HeaderValue, Method, StatusCode,
        header::{AUTHORIZATION, HOST, ORIGIN},
        uri::Authority,
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::{net::IpAddr, sync::Arc};
use subtle::{Choice, ConstantTimeEq};
use tower_http::cors::{AllowHeaders, Any, CorsLayer};

/// API keys. Compared in a time that does not depend on how much of a key is right.
#[derive(Clone, Default)]
pub struct Keys(Vec<blake3::Hash>);

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

impl Keys {
    /// These keys; none lets everybody in.
    pub fn new(keys: &[String]) -> Self {
        Self(keys.iter().map(|key| blake3::hash(key.as_bytes())).collect())
    }

    /// The number of the key, from 0, if it is one.
    fn find(&self, key: &str) -> Option<usize> {
        // Hashes have one length, and every key is compared.
        let hash = blake3::hash(key.as_bytes());
        let mut found = None;
        for (number, known) in self.0.iter().enumerate() {
            let same: Choice = known.as_bytes().ct_eq(hash.as_bytes());
            if bool::from(same) {
                found = Some(number);
            }
        }
        found
    }
}

/// What makes the name of a key's folder from its hash, so that the folder does not tell the hash of the key.
const FOLDER: &str = "kvas 2026 folder of an API key";

/// Who may ask, and what of others' they may begin with.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// The keys.
    pub keys: Keys,
    /// Whether a request may begin with what was read for another key.
    pub sharing: Sharing,
    /// Other sites whose pages may ask; `*` is any.
    pub origins: Vec<String>,
    /// Who can reach the server.
    pub reach: Reach,
}

impl Access {
    /// Whether there are callers who may not begin with what was read for others.
    pub fn keeps_apart(&self) -> bool {
        self.sharing == Sharing::PerKey && !self.keys.0.is_empty()
    }

    /// The folder that holds the files of a caller and of nobody else; none where all share everything. It is named after
    /// the key, not after its place among the keys, which may change with the next start.
    pub fn folder(&self, caller: Caller) -> Option<String> {
        let number = usize::try_from(caller.scope.checked_sub(1)?).ok()?;
        let hash = blake3::derive_key(FOLDER, self.keys.0.get(number)?.as_bytes());
        Some(hash[..16].iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// What makes a scope from another one and a salt.
const SALTED: &str = "kvas 2026 scope of a cache_salt";

/// The scope of requests that have a salt: what was read for one of them is begun with by those of the same scope that have
/// the same salt, and by no others.
pub fn salted(scope: u64, salt: &str) -> u64 {
    let of = [&scope.to_le_bytes(), salt.as_bytes()].concat();
    let hash = blake3::derive_key(SALTED, &of);
    // No API key has a number as large.
    hash[..8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte)) | 1 << 63
}

/// Who can reach the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reach {
    /// Other machines.
    #[default]
    Network,
    /// Programs of this machine. A page of another site can make its own name lead here, and is of this server's origin
    /// then; its name is what gives it away.
    Local,
}

/// Whether a request may begin with what was read for another key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sharing {
    /// Each key has what was read for it, and nothing else: how fast a request is tells nothing about others.
    #[default]
    PerKey,
    /// All share everything.
    All,
}

/// Endpoints that need no key: whether the server lives, what it speaks, and the page that asks for one.
const OPEN: &[&str] = &["/", "/health", "/v1/health", "/openapi.json", "/app.js", "/style.css"];

/// The keys of a request. Clients of one API send something in the header of another, too: any of them may be right.
fn keys(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    // Names of schemes have no case.
    let bearer = text(AUTHORIZATION.as_str()).and_then(|value| value.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, key)| key.trim());
    bearer.into_iter().chain(text("x-api-key"))
}

/// Whether a request asks for a name that a server of this machine alone can have, or a listed one.
fn is_expected(host: &str, origins: &[String]) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().to_ascii_lowercase();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let is_listed = |origin: &String| origin == "*" || origin.split_once("://").is_some_and(|(_, rest)| rest == host);
    name == "localhost"
        || name.ends_with(".localhost")
        || address.parse::<IpAddr>().is_ok()
        || origins.iter().any(is_listed)
}

fn forbidden(message: String) -> Response {
    ApiError { status: StatusCode::FORBIDDEN, ..ApiError::unauthorized(message) }.into_response()
}

/// What a page of another site may know: it is refused unless it is on the list. Without this any page a user looks at
/// could use a server on his machine.
pub async fn check_origin(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let Access { origins, keys, reach, .. } = &server.access;
    let host = request.headers().get(HOST).and_then(|value| value.to_str().ok());
    // Such a page has no key.
    if *reach == Reach::Local
        && keys.0.is_empty()
        && let Some(host) = host.filter(|host| !is_expected(host, origins))
    {
        return forbidden(format!(
            "host {host}, expected localhost or an address; --cors-origin http://{host} lets it"
        ));
    }
    let Some(origin) = request.headers().get(ORIGIN).and_then(|value| value.to_str().ok()) else {
        return next.run(request).await;
    };
    let own = host.is_some_and(|host| origin.split_once("://").is_some_and(|(_, rest)| rest == host));
    if own || origins.iter().any(|known| known == "*" || known == origin) {
        return next.run(request).await;
    }
    forbidden(format!("pages of {origin} may not ask; --cors-origin lets them"))
}

/// The headers that let pages of the listed sites read replies.
pub fn cross_origin(origins: &[String]) -> CorsLayer {
    // Not `*`: browsers do not let that stand for `Authorization`.
    let headers = AllowHeaders::mirror_request();
    let layer = CorsLayer::new().allow_methods(Any).allow_headers(headers).expose_headers(Any);
    if origins.iter().any(|origin| origin == "*") {
        return layer.allow_origin(Any);
    }
    let known: Vec<HeaderValue> = origins.iter().filter_map(|origin| origin.parse().ok()).collect();
    layer.allow_origin(known)
}

/// Lets through who has a key, and notes whose request it is.
pub async fn check(State(server): State<Arc<Server>>, mut request: Request, next: Next) -> Response {
    let access = &server.access;
    let is_open = request.method() == Method::OPTIONS || OPEN.contains(&request.uri().path());
    if !access.keys.0.is_empty() && !is_open {
        let Some(number) = keys(request.headers()).find_map(|key| access.keys.find(key)) else {
            return ApiError::unauthorized("Invalid API key: expected one in Authorization: Bearer or x-api-key")
                .into_response();
        };
        let scope = match access.sharing {
            Sharing::PerKey => number as u64 + 1,
            Sharing::All => 0,
        };
        request.extensions_mut().insert(Caller { scope });
    }
    next.run(request).await
}

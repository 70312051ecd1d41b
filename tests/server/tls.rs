//! HTTPS: who is believed, what is spoken behind the greeting, and that who does not greet is hung up on.

use super::host::Host;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde_json::{Value, json};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// What the impatient server waits for a greeting, and what the tests wait for the server: less than what is usual for a
/// greeting.
const PATIENCE: Duration = Duration::from_millis(300);
const SOON: Duration = Duration::from_secs(8);

pub(crate) fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tls").join(name)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

/// A client that believes who this authority has signed and speaks these protocols.
fn client(authority: Option<&str>, protocols: &[&str]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    if let Some(name) = authority {
        roots.add(CertificateDer::from_pem_file(file(name)).unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

/// The reply to a request, and the protocol that was agreed on.
fn ask(address: SocketAddr, config: Arc<ClientConfig>, request: &str) -> std::io::Result<(String, Vec<u8>)> {
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = StreamOwned::new(ClientConnection::new(config, name).unwrap(), connect(address));
    stream.write_all(request.as_bytes())?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok((reply, stream.conn.alpn_protocol().unwrap_or_default().to_vec()))
}

fn post(path: &str, body: &Value) -> String {
    let body = body.to_string();
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
}

#[test]
fn https_is_http_1_1_behind_a_greeting() {
    let host = Host::with_tls(PATIENCE);
    let health = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    for offered in [&["h2", "http/1.1"][..], &["http/1.1"], &[]] {
        let (reply, agreed) = ask(host.address, client(Some("authority.pem"), offered), health).unwrap();
        assert!(reply.starts_with("HTTP/1.1 200 ") && reply.ends_with("{\"status\":\"ok\"}"), "{reply}");
        assert_eq!(agreed, if offered.is_empty() { &b""[..] } else { b"http/1.1" }, "{offered:?}");
    }
    // Who speaks HTTP/2 only learns so at once.
    let error = ask(host.address, client(Some("authority.pem"), &["h2"]), health).unwrap_err();
    assert!(error.to_string().contains("NoApplicationProtocol"), "{error}");
    let error = ask(host.address, client(None, &["http/1.1"]), health).unwrap_err();
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
    // A stream of events arrives whole.
    let body = json!({"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0, "ignore_eos": true});
    let whole = Host::shared().post("/v1/completions", &body).ok()["choices"][0]["text"].clone();
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let config = client(Some("authority.pem"), &["http/1.1"]);
    let (reply, _) = ask(host.address, config, &post("/v1/completions", &streamed)).unwrap();
    let events = reply.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let text: String = events.filter_map(|event| Some(event["choices"][0]["text"].as_str()?.to_string())).collect();
    assert_eq!(json!(text), whole);
}

#[test]
fn who_does_not_greet_is_hung_up_on() {
    let host = Host::with_tls(PATIENCE);
    let greeting = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    for bytes in [&b""[..], greeting, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"] {
        let (mut stream, began, mut reply) = (connect(host.address), Instant::now(), Vec::new());
        stream.write_all(bytes).unwrap();
        // Closed or reset, as long as it ends.
        let ended = stream.read_to_end(&mut reply);
        let timed_out = ended.is_err_and(|error| matches!(error.kind(), std::io::ErrorKind::WouldBlock));
        assert!(!timed_out && began.elapsed() < SOON, "{bytes:?}: the server keeps the connection");
        assert!(!String::from_utf8_lossy(&reply).contains("HTTP"), "{bytes:?}: {reply:?}");
    }
    let config = client(Some("authority.pem"), &[]);
    let health = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert!(ask(host.address, config, health).unwrap().0.contains("\"ok\""));
}

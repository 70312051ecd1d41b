//! Clients that break the rules, over sockets: they get an error or lose their connection, and nobody else notices.

use super::host::{Bundled, Host};
use kvas::server::{Keys, LoadError, Loaded, Loader, MemoryDemand};
use serde_json::{Value, json};
use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// What the impatient server waits for a head or the next part of a body.
const PATIENCE: Duration = Duration::from_millis(300);
/// What the tests wait for the server, on a machine that does other things, too.
const SOON: Duration = Duration::from_secs(20);

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.set_write_timeout(Some(SOON)).unwrap();
    stream
}

/// All that comes until the server closes the connection, which it has to.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let (mut all, mut part) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut part) {
            Ok(0) => return all,
            Ok(count) => all.extend(&part[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("the server keeps the connection: {}", String::from_utf8_lossy(&all))
            }
            // Closed while something was still under way.
            Err(_) => return all,
        }
    }
}

/// The status of every reply to these bytes, on one connection. Who does not read all of it is not to blame the sender.
fn statuses(address: SocketAddr, bytes: &[u8]) -> Vec<u16> {
    let mut stream = connect(address);
    let _ = stream.write_all(bytes);
    let text = String::from_utf8_lossy(&rest(&mut stream)).into_owned();
    text.split("HTTP/1.1 ").skip(1).map(|reply| reply[..3].parse().unwrap()).collect()
}

/// The server answers, and serves nobody else.
fn is_well(host: &Host) {
    let body = json!({"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 2});
    host.post("/v1/chat/completions", &body).ok();
    let began = Instant::now();
    while host.get("/slots").ok().as_array().unwrap().iter().any(|slot| slot["is_processing"] == true) {
        assert!(began.elapsed() < SOON, "{}", host.get("/slots").text());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(host.get("/health").ok()["status"], "ok");
}

fn post(path: &str, length: usize) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n")
}

#[test]
fn what_is_no_http_is_refused_or_hung_up_on() {
    let host = Host::with_patience(1, PATIENCE);
    let headers = |count: usize| (0..count).map(|number| format!("x-{number}: y\r\n")).collect::<String>();
    let head = |headers: &str| format!("POST /tokenize HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").into_bytes();
    let with_body = |headers: &str, body: &str| [head(headers), body.as_bytes().to_vec()].concat();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("words", b"hello there\r\n\r\n".to_vec()),
        ("zeros", vec![0; 4096]),
        ("a TLS greeting", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec()),
        ("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        ("another version", b"GET /health HTTP/9.9\r\n\r\n".to_vec()),
        ("a header of a MiB", head(&format!("x: {}\r\n", "y".repeat(1 << 20)))),
        ("headers without end", head(&headers(5000))),
        ("an address of a MiB", format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20)).into_bytes()),
        ("a header without a colon", head("nonsense\r\n")),
        ("a space before the colon", head("content-length : 2\r\n")),
        ("a zero in a header", head("x: a\0b\r\n")),
        ("a line that is folded", head("x: a\r\n b\r\n")),
        ("a length below zero", with_body("content-length: -1\r\n", "{}")),
        ("a length of letters", with_body("content-length: two\r\n", "{}")),
        ("a length that overflows", with_body("content-length: 99999999999999999999999\r\n", "{}")),
        ("two lengths", with_body("content-length: 2\r\ncontent-length: 3\r\n", "{}")),
        ("an encoding nobody knows", with_body("transfer-encoding: xchunked\r\n", "2\r\n{}\r\n0\r\n\r\n")),
        ("chunked, but not last", with_body("transfer-encoding: chunked, gzip\r\n", "2\r\n{}\r\n0\r\n\r\n")),
        ("a chunk whose size is none", with_body("transfer-encoding: chunked\r\n", "zz\r\n{}\r\n0\r\n\r\n")),
        ("a chunk that overflows", with_body("transfer-encoding: chunked\r\n", "ffffffffffffffff1\r\n{}\r\n")),
    ];
    for (what, bytes) in cases {
        let statuses = statuses(host.address, &bytes);
        assert!(statuses.iter().all(|status| (400..=505).contains(status) && *status != 500), "{what}: {statuses:?}");
        assert!(statuses.len() <= 1, "{what}: {statuses:?}");
    }
    is_well(&host);
}

/// Where two servers disagree where a request ends, what one takes for a body is a request to the other.
#[test]
fn a_body_is_not_taken_for_a_request() {
    let host = Host::with_patience(1, PATIENCE);
    let hidden = "DELETE /v1/responses/x HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let encodings =
        ["transfer-encoding: chunked", "Transfer-Encoding: chunked, identity", "transfer-encoding: identity"];
    for encoding in encodings {
        let length = format!("content-length: {}", 5 + hidden.len());
        for headers in [format!("{encoding}\r\n{length}"), format!("{length}\r\n{encoding}")] {
            let bytes = format!("POST /tokenize HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n0\r\n\r\n{hidden}");
            let statuses = statuses(host.address, bytes.as_bytes());
            assert!(statuses.len() == 1 && statuses[0] == 400, "{headers}: {statuses:?}");
        }
    }
    is_well(&host);
}

#[test]
fn a_body_that_is_no_json_is_refused() {
    let host = Host::with_patience(1, PATIENCE);
    let content = |content: &str| format!("{{\"content\": {content}}}").into_bytes();
    let brackets = |bracket: &str| bracket.repeat(100_000);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("half", b"{\"content\": \"x\"".to_vec()),
        ("more", b"{\"content\": \"x\"} {}".to_vec()),
        ("brackets", content(&brackets("["))),
        ("brackets that are closed", content(&(brackets("[") + &brackets("]")))),
        ("braces", content(&brackets("{\"x\":"))),
        ("a number that is too large", content("1e999")),
        ("no number", content("NaN")),
        ("endless", content("-Infinity")),
        ("no UTF-8", content("\"x\"").into_iter().map(|byte| if byte == b'x' { 0xff } else { byte }).collect()),
        ("half a pair", content("\"\\ud800\"")),
        ("a control character", content("\"\u{1}\"")),
        ("UTF-16", "{\"content\": \"x\"}".encode_utf16().flat_map(u16::to_le_bytes).collect()),
        ("a number beyond 64 bits", br#"{"content": "x", "model": 1180591620717411303424}"#.to_vec()),
    ];
    for (what, body) in cases {
        let bytes = [post("/tokenize", body.len()).into_bytes(), body].concat();
        assert_eq!(statuses(host.address, &bytes), [400], "{what}");
    }
    // Of two fields of one name the last one counts.
    let twice = host.send("POST", "/tokenize", &[], r#"{"content": 3, "content": ""}"#).ok();
    assert_eq!(twice["count"], 0);
    let large: Vec<Value> = ["max_tokens", "seed", "top_k", "id_slot", "n"]
        .iter()
        .map(|field| serde_json::from_str(&format!(r#"{{"prompt": "x", "{field}": 1180591620717411303424}}"#)).unwrap())
        .collect();
    for body in large {
        let reply = host.post("/v1/completions", &body);
        assert_eq!(reply.status, 400, "{body}: {}", reply.text());
    }
    is_well(&host);
}

#[test]
fn a_body_that_is_too_large_is_refused() {
    let host = Host::start(1, |settings, _| settings.body_limit = 32 << 20);
    let large = format!("{{\"content\": \"{}\"}}", "x".repeat(33 << 20));
    let close = |head: String| head.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    let announced = close(post("/tokenize", large.len())) + &large;
    assert_eq!(statuses(host.address, announced.as_bytes()), [413]);
    let head = close("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".into());
    let part = "x".repeat(1 << 16);
    let chunks = format!("10000\r\n{part}\r\n").repeat(33 * 16);
    assert_eq!(statuses(host.address, (head + &chunks).as_bytes()), [413]);
    is_well(&host);
}

/// Who sends first and listens then hears what is wrong, whatever the server made of the body.
#[test]
fn who_sends_what_nobody_reads_hears_why() {
    let host = Host::start(1, |settings, access| {
        settings.body_limit = 1 << 20;
        access.keys = Keys::new(&["one".into()]);
    });
    let key = "\r\nx-api-key: one\r\n\r\n";
    let large = "x".repeat(16 << 20);
    let heads = [
        (post("/tokenize", large.len()), 401),
        (post("/nowhere", large.len()).replace("\r\n\r\n", key), 413),
        (post("/tokenize", large.len()).replace("\r\n\r\n", key), 413),
    ];
    for (head, status) in heads {
        let mut stream = connect(host.address);
        stream.write_all((head + &large).as_bytes()).expect("all of it is taken");
        // The connection is as good as new.
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let text = String::from_utf8_lossy(&rest(&mut stream)).into_owned();
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")) && text.contains("HTTP/1.1 200 "), "{status}: {text}");
    }
    // Who asks before he sends need not send.
    let expect = format!("Connection: close\r\nExpect: 100-continue{key}");
    let asks = post("/tokenize", large.len()).replace("\r\n\r\n", &format!("\r\n{expect}"));
    assert_eq!(statuses(host.address, asks.as_bytes()), [413]);
    let asks = post("/tokenize", 2).replace("\r\n\r\n", &format!("\r\n{expect}"));
    assert_eq!(statuses(host.address, (asks + "{}").as_bytes()), [100, 400]);
}

/// Sends these bytes one by one, and says how long the server took it.
fn drip(address: SocketAddr, bytes: &[u8]) -> (Duration, Vec<u8>) {
    // The server counts from when it accepts, which may be before this thread goes on.
    let (began, mut stream) = (Instant::now(), connect(address));
    for byte in bytes {
        if stream.write_all(&[*byte]).is_err() || began.elapsed() > SOON {
            break;
        }
        std::thread::sleep(PATIENCE / 10);
    }
    let rest = rest(&mut stream);
    (began.elapsed(), rest)
}

#[test]
fn who_says_nothing_or_too_slowly_is_hung_up_on() {
    let host = Host::with_patience(1, PATIENCE);
    let endless = format!("GET /health HTTP/1.1\r\nHost: localhost\r\nx: {}", "y".repeat(2000));
    for bytes in [&b""[..], b"P", b"PRI * HT", endless.as_bytes()] {
        let (took, reply) = drip(host.address, bytes);
        assert!(took >= PATIENCE && took < SOON, "{} bytes: {took:?}", bytes.len());
        assert!(!reply.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&reply));
    }
    // A connection that is kept for the next request is not kept for ever.
    let (took, reply) = drip(host.address, b"");
    assert!(took >= PATIENCE && reply.is_empty());
    let statuses = statuses(host.address, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(statuses, [200]);
    // As with heads, so with bodies, whose sender is told.
    let mut stream = connect(host.address);
    stream.write_all(&[post("/tokenize", 100).as_bytes(), b"{"].concat()).unwrap();
    let reply = String::from_utf8(rest(&mut stream)).unwrap();
    assert!(reply.starts_with("HTTP/1.1 408 ") && reply.contains("in time"), "{reply}");
    is_well(&host);
}

#[test]
fn who_leaves_before_the_end_costs_nothing() {
    let host = Host::with_patience(1, PATIENCE);
    let body = json!({"prompt": "The fox", "max_tokens": 900, "ignore_eos": true}).to_string();
    let whole = post("/v1/completions", body.len()) + &body;
    for cut in [1, 30, whole.len() / 2, whole.len() - 1] {
        let mut stream = connect(host.address);
        stream.write_all(&whole.as_bytes()[..cut]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let reply = rest(&mut stream);
        assert!(reply.is_empty() || reply.starts_with(b"HTTP/1.1 400"), "{cut}: {}", String::from_utf8_lossy(&reply));
    }
    // Who waits for a reply in one piece and leaves frees the slot within a second; a machine under load is given more.
    let mut stream = connect(host.address);
    stream.write_all(whole.as_bytes()).unwrap();
    let slot = |wanted: bool| {
        let began = Instant::now();
        loop {
            let slot = host.get("/slots").ok()[0].clone();
            let is_wanted = slot["is_processing"] == wanted && (!wanted || slot["next_token"]["n_decoded"] != 0);
            if is_wanted {
                return (slot["next_token"]["n_decoded"].as_u64().unwrap(), began.elapsed());
            }
            assert!(began.elapsed() < SOON, "{slot}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    slot(true);
    drop(stream);
    let (generated, took) = slot(false);
    assert!(generated < 900 && took < Duration::from_secs(3), "{generated} tokens, {took:?}");
    is_well(&host);
}

#[test]
fn many_connections_that_do_nothing_disturb_nobody() {
    let host = Host::with_patience(2, PATIENCE);
    let body = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{\"prompt\": ";
    let mut all: Vec<TcpStream> = (0..200).map(|_| connect(host.address)).collect();
    for (number, stream) in all.iter_mut().enumerate() {
        let _ = match number % 4 {
            0 => Ok(()),
            1 => stream.write_all(b"GET /heal"),
            2 => stream.write_all(body),
            _ => stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        };
    }
    is_well(&host);
    all.iter_mut().for_each(|stream| drop(rest(stream)));
    is_well(&host);
}

/// As many as the server has threads: whatever it takes them to be cut into tokens, others are answered.
#[test]
fn long_texts_hold_up_nobody() {
    let host = Host::start(2, |settings, _| settings.body_limit = 16 << 20);
    let long = "fox hen dog river's ".repeat(400_000);
    for (path, body) in [
        ("/tokenize", json!({"content": long})),
        ("/v1/completions", json!({"prompt": long})),
        ("/completion", json!({"prompt": [long, 5]})),
        ("/api/generate", json!({"prompt": long, "raw": true})),
        ("/completion", json!({"prompt": "Hi", "n_predict": 1, "logit_bias": [[long, 1]]})),
    ] {
        let (began, mut waited) = (Instant::now(), Duration::ZERO);
        std::thread::scope(|scope| {
            let asked: Vec<_> = (0..2).map(|_| scope.spawn(|| host.post(path, &body))).collect();
            while asked.iter().any(|asked| !asked.is_finished()) {
                let asked = Instant::now();
                host.get("/health").ok();
                waited = waited.max(asked.elapsed());
            }
        });
        assert!(waited < began.elapsed() / 2, "{path}: {waited:?} of {:?}", began.elapsed());
    }
}

/// Takes its time, and counts.
#[derive(Debug)]
struct Slow(Arc<AtomicUsize>);

impl Loader for Slow {
    fn load(&self, name: &str, room: MemoryDemand) -> Result<Loaded, LoadError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(300));
        Bundled::plain().load(name, room)
    }
}

/// A client that leaves while its model is loaded does not let another one load it a second time beside that.
#[test]
fn who_leaves_while_a_model_is_loaded_has_it_loaded_once() {
    let loads = Arc::new(AtomicUsize::new(0));
    let host = Host::with_loader(Arc::new(Slow(loads.clone())));
    let mut leaving = connect(host.address);
    leaving.write_all((post("/tokenize", 15) + "{\"content\":\"a\"}").as_bytes()).unwrap();
    let began = Instant::now();
    while loads.load(Ordering::SeqCst) == 0 {
        assert!(began.elapsed() < SOON);
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(leaving);
    std::thread::sleep(Duration::from_millis(50));
    is_well(&host);
    assert_eq!(loads.load(Ordering::SeqCst), 1);
}

/// A body that is packed is refused for that, and not for what its bytes look like.
#[test]
fn a_packed_body_is_refused_by_name() {
    let host = Host::shared();
    let body = json!({"prompt": "A", "n_predict": 1}).to_string();
    let refused = host.send("POST", "/completion", &[("Content-Encoding", "gzip")], &body);
    assert!(refused.status == 415 && refused.text().contains("content-encoding: gzip"), "{}", refused.text());
    assert_eq!(host.send("POST", "/completion", &[("Content-Encoding", "identity")], &body).status, 200);
}

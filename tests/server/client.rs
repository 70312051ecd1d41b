//! As much of an HTTP client as the tests need: one request per connection.

use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// A reply.
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

/// A reply whose body is still to come.
pub(crate) struct Opened {
    reader: BufReader<TcpStream>,
    status: u16,
    headers: Vec<(String, String)>,
}

/// Sends a request and reads the head of its reply.
pub(crate) fn open(address: SocketAddr, (method, path): (&str, &str), headers: &[(&str, &str)], body: &[u8]) -> Opened {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    head += &format!("Content-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut reader = BufReader::new(stream);
    let mut lines = std::iter::from_fn(|| {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        Some(line.trim_end().to_string()).filter(|line| !line.is_empty())
    });
    let status = lines.next().unwrap();
    let status = status.split(' ').nth(1).unwrap().parse().unwrap();
    let pair = |line: String| {
        let (name, value) = line.split_once(':').unwrap();
        (name.to_lowercase(), value.trim().to_string())
    };
    let headers = lines.map(pair).collect();
    Opened { reader, status, headers }
}

fn header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

impl Opened {
    /// The next piece of a body that comes in pieces; none at its end.
    pub(crate) fn piece(&mut self) -> Option<Vec<u8>> {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        let length = usize::from_str_radix(line.trim(), 16).unwrap();
        let mut piece = vec![0; length + 2];
        self.reader.read_exact(&mut piece).unwrap();
        piece.truncate(length);
        Some(piece).filter(|piece| !piece.is_empty())
    }

    /// The whole reply.
    pub(crate) fn rest(mut self) -> Reply {
        let mut body = Vec::new();
        if header(&self.headers, "transfer-encoding") == Some("chunked") {
            while let Some(piece) = self.piece() {
                body.extend(piece);
            }
        } else {
            self.reader.read_to_end(&mut body).unwrap();
        }
        Reply { status: self.status, headers: self.headers, body }
    }
}

impl Reply {
    /// What a header says.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The value of a reply that has to be 200.
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// Lines of JSON.
    pub(crate) fn lines(&self) -> Vec<Value> {
        assert_eq!((self.status, header(&self.headers, "content-type")), (200, Some("application/x-ndjson")));
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Server-sent events: their names, and what they say. `[DONE]` is left out.
    pub(crate) fn events(&self) -> Vec<(Option<String>, Value)> {
        assert_eq!(self.status, 200, "{}", self.text());
        assert_eq!(header(&self.headers, "content-type"), Some("text/event-stream"));
        let text = self.text();
        let field = |event: &str, name: &str| {
            let line = event.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.map(|value| value.trim_start().to_string())
        };
        let events = text.split("\n\n").filter_map(|event| Some((field(event, "event"), field(event, "data")?)));
        let events = events.filter(|(_, data)| data != "[DONE]");
        events.map(|(name, data)| (name, serde_json::from_str(&data).unwrap())).collect()
    }
}

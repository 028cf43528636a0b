//! Fetches over plain HTTP from a server on this machine; who may be fetched from is judged as over https.

use std::io::Write;
use std::net::TcpListener;

use super::*;

/// A server that gives each connection the next of these answers. Returns its `address:port`.
fn server(answers: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    tokio::task::spawn_blocking(move || {
        for answer in answers {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let mut head = [0; 4096];
            let _ = stream.read(&mut head);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    address
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nconnection: close\r\n{headers}\r\n{body}")
}

fn local(hosts: &[&str]) -> Fetch {
    Fetch::over(Scheme::HTTP, hosts.iter().map(|host| (*host).to_owned()).collect())
}

fn get(fetch: &Fetch, url: &str, most: u64) -> Result<Vec<u8>, String> {
    fetch.get(fetch.wish(url)?, most)
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_come_within_their_bound() {
    let sized = answer("200 OK", "content-length: 5\r\n", "bytes");
    let endless = answer("200 OK", "", &"x".repeat(100));
    let address = server(vec![sized.clone(), sized, endless]);
    let fetch = local(&["127.0.0.1"]);
    let url = format!("http://{address}/a.png");
    assert_eq!(get(&fetch, &url, 5).unwrap(), b"bytes");
    assert!(get(&fetch, &url, 4).unwrap_err().contains("5 bytes or more, but only 4 are taken"));
    assert!(get(&fetch, &url, 50).unwrap_err().contains("but only 50 are taken"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_leads_to_the_same_server_or_nowhere() {
    let to = |place: &str| answer("302 Found", &format!("location: {place}\r\ncontent-length: 0\r\n"), "");
    let whole = answer("200 OK", "content-length: 2\r\n", "ok");
    let circle = vec![to("/b"); 4];
    let first =
        vec![to("/there"), whole, to("http://localhost/x"), to("//localhost/x"), to("file:///etc"), to("")];
    let address = server([first, circle].concat());
    let fetch = local(&["127.0.0.1", "localhost"]);
    let url = format!("http://{address}/a");
    assert_eq!(get(&fetch, &url, 10).unwrap(), b"ok");
    for _ in 0..4 {
        assert!(get(&fetch, &url, 10).unwrap_err().contains("to another server"));
    }
    assert!(get(&fetch, &url, 10).unwrap_err().contains("in circles"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_inside_a_network_must_be_named_itself() {
    let address =
        server(vec![answer("200 OK", "content-length: 2\r\n", "ok"), answer("404 Not Found", "", "")]);
    let (_, port) = address.rsplit_once(':').expect("a port");
    let url = format!("http://localhost:{port}/a");
    let error = get(&local(&["localhost"]), &url, 10).unwrap_err();
    assert!(error.contains("no public address"), "{error}");
    assert_eq!(get(&local(&["localhost", "127.0.0.1"]), &url, 10).unwrap(), b"ok");
    let error = get(&local(&["localhost", "127.0.0.1"]), &url, 10).unwrap_err();
    assert!(error.contains("404"), "{error}");
}

#[test]
fn only_named_servers_are_asked_and_only_plainly() {
    let refusal = |hosts: &[&str], url: &str| {
        let fetch = Fetch::new(hosts.iter().map(|host| (*host).to_owned()).collect());
        fetch.wish(url).err().unwrap_or_default()
    };
    assert!(refusal(&[], "https://a.example/x").contains("fetches no images"));
    let named = &["images.example.org", "10.0.0.5", "::1"][..];
    assert!(refusal(named, "https://images.example.org.evil.example/x").contains("fetches no images from"));
    assert!(refusal(named, "https://10.0.0.6/x").contains("fetches no images from"));
    for wrong in [
        "https://me:secret@images.example.org/x",
        "https://images.example.org:8443/x",
        "http://images.example.org/x",
        "https://images.example.org\\@evil.example/x",
        "https:///x",
    ] {
        assert!(!refusal(named, wrong).is_empty(), "{wrong}");
    }
    for good in [
        "https://images.example.org/a/b.png?c=d",
        "https://IMAGES.example.org:443/x",
        "https://10.0.0.5/x",
        "https://[::1]/x",
    ] {
        assert_eq!(refusal(named, good), "", "{good}");
    }
}

#[test]
fn addresses_are_told_apart() {
    for inside in [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.100.100.200",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "198.18.0.1",
        "192.0.2.1",
        "::1",
        "::",
        "fe80::1",
        "fd00::1",
        "fc00::1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "2002:a00:1::",
        "2001:db8::1",
        "ff02::1",
        "2001::1",
    ] {
        assert!(!is_public(inside.parse().unwrap()), "{inside}");
    }
    for outside in
        ["1.1.1.1", "93.184.216.34", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::1"]
    {
        assert!(is_public(outside.parse().unwrap()), "{outside}");
    }
}

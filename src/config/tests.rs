use super::*;

#[test]
fn bind_host_drops_brackets() {
    for (written, bound) in
        [("[::]", "::"), ("::1", "::1"), ("0.0.0.0", "0.0.0.0"), ("localhost", "localhost")]
    {
        let server = Server { host: written.to_owned(), ..Server::default() };
        assert_eq!(server.bind_host(), bound);
    }
}

//! Random changes of queries of pods and of answers of name servers, both of which are hostile.

use std::time::Duration;

use domain::base::Message;
use domain::base::iana::Rtype;

use super::cache::Cache;
use super::message::tests::{query, response};
use super::message::{QUERY, Query, Response, TCP, Unanswerable, follow};
use super::names::{Answer, Zone};

/// What is written is read again, is not longer than allowed, and answers the same question.
fn check(bytes: &[u8], limit: u16, question: &[u8]) {
    assert!(bytes.len() <= usize::from(limit), "{} of {limit}", bytes.len());
    let message = Message::from_slice(bytes).expect("a header");
    assert!(message.header().qr());
    message.sole_question().expect("one question");
    for section in [message.answer(), message.authority(), message.additional()] {
        assert!(section.expect("a section").all(|record| record.is_ok()));
    }
    assert!(bytes[12..].to_ascii_lowercase().starts_with(&question.to_ascii_lowercase()));
}

#[test]
fn queries_changed_at_random_get_no_answer_or_a_right_one() {
    let corpus = [
        query("web.default.svc.cluster.local", Rtype::A, None),
        query("dns-version.cluster.local", Rtype::TXT, Some(1232)),
        query("1.0.96.10.in-addr.arpa", Rtype::PTR, Some(0)),
        query("cluster.local", Rtype::SOA, Some(65535)),
        query("www.example.com", Rtype::AAAA, Some(512)),
    ];
    let words: [&[u8]; 6] =
        [b"\x03svc", b"\x07cluster\x05local\0", b"\xc0\x0c", b"\0\0\x29", b"\x3f", b"\xff\xff"];
    let zone = Zone::new("cluster.local", vec![[10, 88, 0, 1].into()]);
    nodlet_fuzz::fuzz("dns query", 20_000, &corpus, &words, |input| match Query::read(input) {
        Ok(query) => {
            let key = query.key();
            let written = query.written();
            assert!(written.len() <= QUERY, "{}", written.len());
            let again = Query::read(&written).expect("a query");
            assert_eq!(again.written(), written);
            assert_eq!((again.key(), again.udp_limit()), (key.clone(), query.udp_limit()));
            let end = 12 + key.labels().iter().map(|label| label.len() + 1).sum::<usize>();
            // A name may be compressed only from its first label on, which no message can be.
            let question = &input[12..end];
            let limit = query.udp_limit();
            let answer = zone.answer(&key.labels(), query.kind());
            if let Some(bytes) = query.answer(&answer, limit) {
                check(&bytes, limit, question);
            } else {
                assert_eq!(answer, Answer::Forward);
                let again = Query::read(&query.forwarded(7)).expect("a query");
                assert_eq!(again.key(), key);
            }
        }
        Err(Unanswerable::Ignored) => {}
        Err(Unanswerable::Rejected(bytes)) => assert!(bytes.len() <= input.len().max(12) + 11 + 255),
    });
}

#[test]
fn answers_changed_at_random_are_ignored_or_written_within_their_bounds() {
    let soa = [&[0u8, 0][..], &[0; 20]].concat();
    let address = (0, Rtype::A, 60, &[192, 0, 2, 1][..]);
    let alias = (0, Rtype::CNAME, 60, &[0xc0, 12][..]);
    let opt = (2, Rtype::OPT, 0, &[][..]);
    let asked = |edns| Query::read(&query("www.example.com", Rtype::A, edns)).expect("a query");
    let corpus = [
        response("www.example.com", Rtype::A, 0, &[address, address, opt]),
        response("www.example.com", Rtype::A, 0, &[alias, address, (2, Rtype::A, 60, &[192, 0, 2, 1])]),
        response("www.example.com", Rtype::A, 3, &[(1, Rtype::SOA, 60, &soa), opt]),
        response("www.example.com", Rtype::A, 0, &[address; 100]),
    ];
    let words: [&[u8]; 6] = [b"\xc0\x0c", b"\xc0\x2b", b"\0\0\x29", b"\x3f", b"\xff\xff", b"\0\x05\0\x01"];
    let question = &corpus[0][12..12 + 21];
    let mut cache = Cache::default();
    nodlet_fuzz::fuzz("dns answer", 20_000, &corpus, &words, |input| {
        for query in [asked(None), asked(Some(1232))] {
            let key = query.key();
            let Some(response) = Response::read(input, &key, 7) else { continue };
            for limit in [query.udp_limit(), TCP] {
                check(&response.answer(&query, 20, limit), limit, question);
                let bytes = follow(&query, &[], &response, 20, limit);
                assert!(bytes.len() <= usize::from(limit));
            }
            cache.insert(Duration::ZERO, key.clone(), response);
            let _ = cache.get(Duration::from_secs(1), &key);
        }
    });
}

use super::*;

fn labels(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(label.len() as u8);
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes
}

/// A query with the ID 0x1234, with an OPT record if `edns` has a size.
pub(in crate::dns) fn query(name: &str, kind: Rtype, edns: Option<u16>) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(edns.is_some())];
    bytes.extend(labels(name));
    bytes.extend([kind.to_int().to_be_bytes(), [0, 1]].concat());
    if let Some(size) = edns {
        bytes.extend([&[0, 0, 41][..], &size.to_be_bytes(), &[0, 0, 0x80, 0, 0, 0]].concat());
    }
    bytes
}

/// An answer to the query with the ID 7: records are a section, a type, a time to live, and data.
pub(in crate::dns) fn response(
    name: &str,
    kind: Rtype,
    rcode: u8,
    records: &[(u8, Rtype, u32, &[u8])],
) -> Vec<u8> {
    let mut bytes = vec![0, 7, 0x81, 0x80 | rcode, 0, 1, 0, 0, 0, 0, 0, 0];
    bytes.extend(labels(name));
    bytes.extend([kind.to_int().to_be_bytes(), [0, 1]].concat());
    for (section, kind, ttl, data) in records {
        bytes[7 + 2 * usize::from(*section)] += 1;
        let owner: &[u8] = if *kind == Rtype::OPT { &[0] } else { &[0xc0, 12] };
        bytes.extend([owner, &kind.to_int().to_be_bytes(), &[0, 1], &ttl.to_be_bytes()].concat());
        bytes.extend([&(data.len() as u16).to_be_bytes(), *data].concat());
    }
    bytes
}

fn rejected(bytes: &[u8]) -> Option<Rcode> {
    match Query::read(bytes) {
        Ok(query) => panic!("{query:?}"),
        Err(Unanswerable::Ignored) => None,
        Err(Unanswerable::Rejected(answer)) => {
            let header = Message::from_slice(&answer).unwrap().header();
            assert!(header.qr() && header.id() == 0x1234);
            Some(header.rcode())
        }
    }
}

fn address(last: u8) -> Record {
    Record { owner: None, ttl: 5, data: Data::Address([10, 0, 0, last].into()) }
}

#[test]
fn messages_that_are_no_usual_query_are_rejected_or_ignored() {
    let good = query("web.default", Rtype::A, Some(1232));
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        rejected(&bytes)
    };
    assert!(Query::read(&good).is_ok());
    assert_eq!(rejected(&[]), None);
    assert_eq!(rejected(&good[..11]), None);
    assert_eq!(with(&|bytes| bytes[2] |= 0x80), None, "an answer");
    assert_eq!(with(&|bytes| bytes[2] |= 0x28), Some(Rcode::NOTIMP), "an update");
    assert_eq!(with(&|bytes| bytes[5] = 0), Some(Rcode::FORMERR), "no question");
    assert_eq!(with(&|bytes| bytes[5] = 2), Some(Rcode::FORMERR), "two questions");
    assert_eq!(with(&|bytes| bytes[7] = 1), Some(Rcode::FORMERR), "with an answer");
    assert_eq!(with(&|bytes| bytes[2] |= 2), Some(Rcode::FORMERR), "truncated");
    assert_eq!(with(&|bytes| bytes.truncate(30)), Some(Rcode::FORMERR), "the question is cut");
    assert_eq!(with(&|bytes| bytes[12..14].copy_from_slice(&[0xc0, 12])), Some(Rcode::FORMERR), "a loop");
    assert_eq!(with(&|bytes| bytes[28] = 3), Some(Rcode::REFUSED), "the class CHAOS");
    let class = good.len() - 12;
    assert_eq!(good[class..class + 1], [1], "the class's end");
    let twice = [&good[..], &good[good.len() - 11..]].concat();
    let mut twice = twice;
    twice[11] = 2;
    assert_eq!(rejected(&twice), Some(Rcode::FORMERR), "two OPT records");
    let transfer = query("cluster.local", Rtype::AXFR, None);
    assert_eq!(rejected(&transfer), Some(Rcode::REFUSED));
    // BADVERS is 16: its upper part is in the OPT record.
    let mut version = good.clone();
    let at = version.len() - 5;
    version[at] = 1;
    match Query::read(&version) {
        Err(Unanswerable::Rejected(answer)) => assert_eq!(answer[answer.len() - 6], 1, "{answer:?}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_query_is_written_as_it_came_but_without_what_changes_no_answer() {
    let bare = query("Web.DEFAULT", Rtype::A, None);
    assert_eq!(Query::read(&bare).unwrap().written(), bare);
    let plain = query("Web.DEFAULT", Rtype::A, Some(4096));
    assert_eq!(Query::read(&plain).unwrap().written(), plain);
    // With padding, and without the wish for recursion.
    let mut padded = [&plain[..], &[0, 12, 1, 144], &[0; 400]].concat();
    padded[plain.len() - 2..plain.len()].copy_from_slice(&404u16.to_be_bytes());
    padded[2] &= !1;
    let written = Query::read(&padded).unwrap().written();
    assert_eq!(written[2], 0);
    assert_eq!((&written[..2], &written[3..]), (&plain[..2], &plain[3..]));
    let name = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
    assert_eq!(Query::read(&query(&name, Rtype::A, Some(1232))).unwrap().written().len(), QUERY);
}

#[test]
fn an_answer_has_the_question_as_it_was_spelled_and_an_opt_record_only_if_the_query_has_one() {
    for (edns, size) in [(None, 0), (Some(1232), 11)] {
        let query = Query::read(&query("Web.DEFAULT", Rtype::A, edns)).unwrap();
        let answer = Answer::Records { answer: vec![address(1)], additional: vec![] };
        let bytes = query.answer(&answer, query.udp_limit()).unwrap();
        let mut expected = vec![0x12, 0x34, 0x85, 0x80, 0, 1, 0, 1, 0, 0, 0, u8::from(edns.is_some())];
        expected.extend(labels("Web.DEFAULT"));
        expected.extend([0, 1, 0, 1, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4, 10, 0, 0, 1]);
        assert_eq!(bytes[..bytes.len() - size], expected);
        assert_eq!(query.key().labels(), [&b"web"[..], b"default"]);
    }
}

#[test]
fn addresses_begin_with_another_one_for_each_id() {
    let answer = Answer::Records { answer: [1, 2, 3].map(address).into(), additional: vec![] };
    let mut firsts = std::collections::BTreeMap::new();
    for id in 0..30 {
        let query = Query { id, ..Query::read(&query("web.default", Rtype::A, None)).unwrap() };
        let bytes = query.answer(&answer, 512).unwrap();
        let mut lasts: Vec<u8> = bytes[12 + 13 + 4..].chunks(16).map(|record| record[15]).collect();
        *firsts.entry(lasts[0]).or_insert(0) += 1;
        lasts.sort_unstable();
        assert_eq!(lasts, [1, 2, 3]);
    }
    assert_eq!(firsts.into_iter().collect::<Vec<_>>(), [(1, 10), (2, 10), (3, 10)]);
}

#[test]
fn an_answer_that_does_not_fit_has_as_many_records_as_do() {
    for (edns, limit, kept) in [(None, 512, 30), (Some(100), 512, 29), (Some(4096), 1232, 74)] {
        let query = Query::read(&query("web.default", Rtype::A, edns)).unwrap();
        let answer = Answer::Records { answer: (0..200).map(address).collect(), additional: vec![] };
        assert_eq!(query.udp_limit(), limit);
        let bytes = query.answer(&answer, limit).unwrap();
        let message = Message::from_slice(&bytes).unwrap();
        assert!(message.header().tc() && bytes.len() <= usize::from(limit));
        assert_eq!(usize::from(message.header_counts().ancount()), kept, "{edns:?}");
        assert_eq!(message.opt().is_some(), edns.is_some());
        let whole = query.answer(&answer, TCP).unwrap();
        let message = Message::from_slice(&whole).unwrap();
        assert_eq!((message.header().tc(), message.header_counts().ancount()), (false, 200));
    }
}

#[test]
fn records_beside_the_answer_are_omitted_without_a_mark() {
    let query = Query::read(&query("_http._tcp.web.default", Rtype::SRV, None)).unwrap();
    let owner = Some(format!("{}.web.default", "a".repeat(60)).into());
    let additional = (0..100).map(|last| Record { owner: owner.clone(), ..address(last) }).collect();
    let target = "web.default".into();
    let srv = Record { owner: None, ttl: 5, data: Data::Srv { weight: 1, port: 80, target } };
    let bytes = query.answer(&Answer::Records { answer: vec![srv], additional }, 512).unwrap();
    let message = Message::from_slice(&bytes).unwrap();
    assert!(!message.header().tc() && bytes.len() <= 512);
    assert!((20..30).contains(&message.header_counts().arcount()), "{:?}", message.header_counts());
}

#[test]
fn a_negative_answer_has_the_record_of_the_domain() {
    let query = Query::read(&query("x.cluster.local", Rtype::A, None)).unwrap();
    let data =
        Data::Soa { server: "ns.dns.cluster.local".into(), mailbox: "h.cluster.local".into(), serial: 7 };
    let soa = Record { owner: Some("cluster.local".into()), ttl: 5, data };
    for (answer, rcode, authority, is_authority) in [
        (Answer::NotExisting(Some(soa.clone())), Rcode::NXDOMAIN, 1, true),
        (Answer::NoData(soa), Rcode::NOERROR, 1, true),
        (Answer::NotExisting(None), Rcode::NXDOMAIN, 0, false),
    ] {
        let bytes = query.answer(&answer, 512).unwrap();
        let message = Message::from_slice(&bytes).unwrap();
        assert_eq!((message.header().rcode(), message.header().aa()), (rcode, is_authority));
        assert_eq!(message.header_counts().nscount(), authority);
    }
}

#[test]
fn only_the_answer_to_what_was_asked_is_read() {
    let query = Query::read(&query("www.Example.com", Rtype::A, None)).unwrap();
    let key = query.key();
    let good = response("www.example.com", Rtype::A, 0, &[(0, Rtype::A, 60, &[192, 0, 2, 1])]);
    assert!(Response::read(&good, &key, 7).is_some());
    assert!(Response::read(&good, &key, 8).is_none(), "another ID");
    for (name, kind) in
        [("www.example.net", Rtype::A), ("www.example.com", Rtype::AAAA), ("example.com", Rtype::A)]
    {
        assert!(Response::read(&response(name, kind, 0, &[]), &key, 7).is_none(), "{name} {kind}");
    }
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Response::read(&bytes, &key, 7)
    };
    assert!(with(2, 1).is_none(), "a query");
    assert!(with(7, 2).is_none(), "fewer records than counted");
    assert!(with(good.len() - 15, good.len() as u8 - 16).is_none(), "a name that points to itself");
    assert!(with(good.len() - 5, 200).is_none(), "data beyond the end");
}

#[test]
fn an_answer_of_another_server_is_written_for_each_client() {
    let opt = (2, Rtype::OPT, 0, &[][..]);
    let first = (0, Rtype::A, 60, &[192, 0, 2, 1][..]);
    let second = (0, Rtype::A, 90, &[192, 0, 2, 2][..]);
    for (edns, records) in [(None, &[first, second, opt][..]), (Some(1232), &[first, second][..])] {
        let query = Query::read(&query("www.Example.com", Rtype::A, edns)).unwrap();
        let bytes = response("www.example.com", Rtype::A, 0, records);
        let response = Response::read(&bytes, &query.key(), 7).unwrap();
        assert_eq!(response.lifetime(&query.key()), Some(60));
        let bytes = response.answer(&query, 20, query.udp_limit());
        let message = Message::from_slice(&bytes).unwrap();
        assert_eq!((message.header().id(), message.header().ra()), (0x1234, true));
        assert_eq!(
            message.sole_question().unwrap().qname().to_name::<Vec<u8>>().as_slice(),
            labels("www.Example.com")
        );
        assert_eq!(message.opt().is_some(), edns.is_some());
        let ttls: Vec<_> = message.answer().unwrap().map(|record| record.unwrap().ttl().as_secs()).collect();
        assert_eq!(ttls, [40, 70]);
    }
}

#[test]
fn a_large_answer_of_another_server_is_cut_at_a_record_and_marked() {
    let query = Query::read(&query("www.example.com", Rtype::A, None)).unwrap();
    let many: Vec<(u8, Rtype, u32, &[u8])> =
        (0..100).map(|_| (0, Rtype::A, 60, &[192, 0, 2, 1][..])).collect();
    let whole = Response::read(&response("www.example.com", Rtype::A, 0, &many), &query.key(), 7).unwrap();
    let bytes = whole.answer(&query, 0, 512);
    let message = Message::from_slice(&bytes).unwrap();
    assert!(message.header().tc() && bytes.len() <= 512 && bytes.len() > 480);
    assert_eq!(message.answer().unwrap().filter(Result::is_ok).count(), 29);
    let besides = [&many[..20], &[(2, Rtype::TXT, 60, &[0; 300])]].concat();
    let whole = Response::read(&response("www.example.com", Rtype::A, 0, &besides), &query.key(), 7).unwrap();
    let bytes = whole.answer(&query, 0, 512);
    assert!(!Message::from_slice(&bytes).unwrap().header().tc(), "the answer is whole");
}

#[test]
fn a_negative_answer_lives_as_long_as_its_soa_record_says() {
    let query = Query::read(&query("www.example.com", Rtype::A, None)).unwrap();
    let soa = [&[0u8, 0][..], &[0; 16], &20u32.to_be_bytes()].concat();
    let alias = (0, Rtype::CNAME, 60, &[0xc0, 12][..]);
    for (rcode, records, expected) in [
        (3, &[(1, Rtype::SOA, 600, &soa[..])][..], Some(20)),
        (0, &[(1, Rtype::SOA, 10, &soa[..])], Some(10)),
        (0, &[alias, (1, Rtype::SOA, 600, &soa[..])], Some(20)),
        (3, &[], None),
        (0, &[], None),
        (2, &[], None),
        (5, &[(1, Rtype::SOA, 600, &soa[..])], None),
    ] {
        let bytes = response("www.example.com", Rtype::A, rcode, records);
        let response = Response::read(&bytes, &query.key(), 7).unwrap();
        assert_eq!(response.lifetime(&query.key()), expected, "{rcode} {records:?}");
        assert_eq!(response.is_failure(), rcode == 2 || rcode == 5);
    }
}

#[test]
fn an_external_name_and_its_records_are_one_message() {
    let query = Query::read(&query("out.default.svc.cluster.local", Rtype::A, None)).unwrap();
    let target = query.with_name("www.example.com").unwrap();
    assert!(query.with_name("no..name").is_none() && query.with_name(&"a".repeat(64)).is_none());
    let records = [(0, Rtype::A, 60, &[192, 0, 2, 1][..]), (0, Rtype::RRSIG, 60, &[0; 20])];
    let response =
        Response::read(&response("www.example.com", Rtype::A, 0, &records), &target.key(), 7).unwrap();
    let chain = [Record { owner: None, ttl: 5, data: Data::Cname("www.example.com".into()) }];
    let bytes = follow(&query, &chain, &response, 10, 512);
    let message = Message::from_slice(&bytes).unwrap();
    assert_eq!(message.header_counts().ancount(), 2);
    let record = message.answer().unwrap().nth(1).unwrap().unwrap();
    assert_eq!(record.owner().to_name::<Vec<u8>>().as_slice(), labels("www.example.com"));
    assert_eq!((record.rtype(), record.ttl().as_secs()), (Rtype::A, 50));
}

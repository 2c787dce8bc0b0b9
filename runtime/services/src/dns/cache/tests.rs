use domain::base::iana::Rtype;

use super::*;
use crate::dns::message::Query;
use crate::dns::message::tests::{query, response};

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn entry(name: &str, rcode: u8, ttl: u32, size: usize) -> (Key, Response) {
    let key = Query::read(&query(name, Rtype::TXT, None)).unwrap().key();
    let data = vec![0; size];
    let bytes = response(name, Rtype::TXT, rcode, &[(0, Rtype::TXT, ttl, &data)]);
    let response = Response::read(&bytes, &key, 7).unwrap();
    (key, response)
}

#[test]
fn an_answer_is_kept_for_its_time_to_live_and_no_longer_than_the_bound() {
    let mut cache = Cache::default();
    for (ttl, lives) in [(60, 60), (1_000_000, u64::from(LONGEST)), (1, 1)] {
        let (key, response) = entry("a.example", 0, ttl, 4);
        cache.insert(secs(100), key.clone(), response);
        let age = |cache: &mut Cache, now| cache.get(now, &key).map(|(_, age)| age);
        assert_eq!(age(&mut cache, secs(100)), Some(0), "{ttl}");
        let last = secs(100 + lives) - Duration::from_millis(1);
        assert_eq!(age(&mut cache, last).map(u64::from), Some(lives - 1), "{ttl}");
        assert_eq!(age(&mut cache, secs(100 + lives)), None, "{ttl}");
    }
}

#[test]
fn failures_large_answers_and_those_without_time_are_not_kept() {
    let mut cache = Cache::default();
    for (rcode, ttl, size) in [(2, 60, 4), (5, 60, 4), (3, 60, 4), (0, 0, 4), (0, 60, ANSWER_BYTES)] {
        let (key, response) = entry("a.example", rcode, ttl, size);
        cache.insert(secs(1), key.clone(), response);
        assert!(cache.get(secs(1), &key).is_none(), "{rcode} {ttl} {size}");
    }
    assert_eq!(cache.bytes, 0);
}

#[test]
fn the_bytes_are_bounded_and_what_was_not_used_goes_first() {
    let mut cache = Cache::default();
    let (often, response) = entry("often.example", 0, 300, 100);
    cache.insert(secs(0), often.clone(), response);
    for number in 0..10_000 {
        let (key, response) = entry(&format!("n{number}.example"), 0, 300, 100);
        cache.insert(secs(1), key, response);
        assert!(cache.bytes <= BYTES);
        assert!(cache.get(secs(1), &often).is_some());
    }
    assert!(cache.answers.len() > 100);
    let (key, response) = entry("last.example", 0, 300, 4000);
    cache.insert(secs(400), key, response);
    assert_eq!(cache.answers.len(), 1, "expired ones went first");
    cache.clear();
    assert_eq!((cache.bytes, cache.answers.len()), (0, 0));
}

//! Messages of all kinds, made by the table of the schema, whole and changed at random: nothing may panic, and an object
//! has no more values and no more text than its message.

use nodlet_fuzz::Random;

use super::*;
use crate::kind::KINDS;

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put(number: u8, bytes: &[u8], out: &mut Vec<u8>) {
    varint(u64::from(number) << 3 | 2, out);
    varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn put_number(number: u8, value: u64, out: &mut Vec<u8>) {
    varint(u64::from(number) << 3, out);
    varint(value, out);
}

const NUMBERS: [u64; 8] = [0, 1, 2, 0x7fff_ffff, 0xffff_ffff, 1 << 62, i64::MIN as u64, u64::MAX];
const TEXTS: [&[u8]; 7] = [b"", b"a", b"8Mi", b"web", b"\xff\xfe", b"\0", "ä".as_bytes()];

/// A value of a field, sometimes of another type.
fn put_value(field: &SchemaField, random: &mut Random, out: &mut Vec<u8>) {
    let number = field.number;
    if random.one_in(60) {
        return put_number(number, *random.pick(&NUMBERS), out);
    }
    if let Shape::Map = field.shape {
        let mut pair = Vec::new();
        put(1, random.pick::<&[u8]>(&TEXTS), &mut pair);
        match field.value {
            Value::Quantity => {
                let mut amount = Vec::new();
                put(1, b"1", &mut amount);
                put(2, &amount, &mut pair);
            }
            _ => put(2, random.pick::<&[u8]>(&TEXTS), &mut pair),
        }
        return put(number, &pair, out);
    }
    match (field.object(), field.value) {
        (Some(of), _) => put(number, &message(of, random), out),
        (None, Value::Bool | Value::Int32 | Value::Int64) => {
            put_number(number, *random.pick(&NUMBERS), out);
        }
        (None, Value::Quantity | Value::IntOrString | Value::Time) => {
            let mut parts = Vec::new();
            for number in 1..=3 {
                match random.below(3) {
                    0 => put_number(number, *random.pick(&NUMBERS), &mut parts),
                    1 => put(number, random.pick::<&[u8]>(&TEXTS), &mut parts),
                    _ => {}
                }
            }
            put(number, &parts, out);
        }
        (None, _) => put(number, random.pick::<&[u8]>(&TEXTS), out),
    }
}

/// A message of a type with some of its fields, of which some are repeated.
fn message(of: &'static Type, random: &mut Random) -> Vec<u8> {
    let (mut out, mut embedded) = (Vec::new(), Vec::new());
    let chances = of.fields.len() / 3 + 2;
    for known in of.fields.iter().filter(|known| known.number > 0) {
        while random.one_in(chances) {
            match known.within {
                0 => put_value(known, random, &mut out),
                within => {
                    put_value(known, random, &mut embedded);
                    put(within, &std::mem::take(&mut embedded), &mut out);
                }
            }
        }
    }
    out
}

fn body(kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut of = Vec::new();
    put(1, b"v1", &mut of);
    put(2, kind.as_bytes(), &mut of);
    let mut out = MAGIC.to_vec();
    put(1, &of, &mut out);
    put(2, raw, &mut out);
    out
}

/// The values of an object, the bytes of its texts, and its depth.
fn size(value: &Json) -> (usize, usize, usize) {
    let sum = |all: &mut dyn Iterator<Item = (usize, usize, usize)>| {
        all.fold((1, 0, 0), |(values, text, depth), one| (values + one.0, text + one.1, depth.max(one.2 + 1)))
    };
    match value {
        Json::Object(fields) => sum(&mut fields.values().map(size)),
        Json::Array(all) => sum(&mut all.iter().map(size)),
        Json::String(text) => (1, text.len(), 0),
        _ => (1, 0, 0),
    }
}

/// The levels of objects and lists of a Pod.
const DEPTH: usize = 24;

fn check(input: &[u8]) {
    const VALUES: usize = 5000;
    if let Ok(object) = object(input, VALUES, |_| true) {
        let (values, text, depth) = size(&object);
        // Each value of a field, and with the first one its list or map.
        assert!(values <= 2 * VALUES.min(input.len()) + 3, "{values} values of {} bytes", input.len());
        // Times are up to 30 bytes long, bytes are in base64.
        assert!(text <= input.len() * 16 + 64, "{text} bytes of text of {} bytes", input.len());
        assert!(depth <= DEPTH, "{depth} levels");
        let _ = crate::manifest::parse(
            "f",
            object.to_string().as_bytes(),
            crate::manifest::Validation::Ignore,
            "b",
        );
    }
}

#[test]
fn messages_of_all_kinds_are_read_or_rejected() {
    let mut read = 0;
    for seed in 0..nodlet_fuzz::setting("NODLET_ROUNDS", 40) {
        for kind in KINDS {
            let Some(of) = schema::find(kind.name) else { continue };
            let input = body(kind.name, &message(of, &mut Random::of(seed)));
            check(&input);
            read += usize::from(object(&input, 5000, |_| true).is_ok());
        }
    }
    assert!(read > 100, "{read} were read");
}

#[test]
fn messages_changed_at_random_are_read_or_rejected() {
    let corpus: Vec<Vec<u8>> = KINDS
        .iter()
        .filter_map(|kind| Some((kind.name, schema::find(kind.name)?)))
        .flat_map(|(name, of)| (0..4).map(move |seed| body(name, &message(of, &mut Random::of(seed)))))
        .collect();
    let words: [&[u8]; 7] = [
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\xff\xff\xff\xff\x0f",
        b"\x0a\x00",
        b"\x12\x02\x0a\x00",
        b"\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
        b"\x0d\0\0\0\0",
        b"\x09\0\0\0\0\0\0\0\0",
    ];
    nodlet_fuzz::fuzz("protobuf", 1500, &corpus, &words, check);
}

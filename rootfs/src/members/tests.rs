use super::*;
use crate::testing::{TarBuilder, tar};

/// Lists every member with its size and its contents.
fn walk(archive: &[u8]) -> Result<Vec<String>, String> {
    let mut members = Members::new(archive);
    let mut lines = Vec::new();
    while let Some(member) = members.next().map_err(|error| error.to_string())? {
        let mut content = Vec::new();
        members.read_to_end(&mut content).map_err(|error| error.to_string())?;
        assert_eq!(content.len() as u64, member.size, "{}", shown(&member.path));
        lines.push(format!("{} {}", shown(&member.path), shown(&content)));
    }
    Ok(lines)
}

/// A member preceded by these PAX records.
fn with_pax(records: &[(&str, &str)], data: &[u8]) -> TarBuilder {
    tar().pax(records).bytes("a", data)
}

fn first(archive: TarBuilder) -> Result<Member, String> {
    let archive = archive.finish();
    let mut members = Members::new(&archive[..]);
    members.next().map(|member| member.expect("a member")).map_err(|error| error.to_string())
}

#[test]
fn pax_records_override_the_header() {
    let records = [
        ("path", "b\nc"),
        ("uid", "3000000000"),
        ("gid", "70000"),
        ("mtime", "-1.25"),
        ("SCHILY.xattr.user.a", "x=y"),
        ("LIBARCHIVE.xattr.user.a%3d", "AAEC/w"),
        ("comment", "ignored"),
    ];
    let member = first(with_pax(&records, b"")).unwrap();
    assert_eq!((shown(&member.path), member.uid, member.gid), ("b\\nc".to_owned(), 3_000_000_000, 70_000));
    assert_eq!(member.mtime, Timestamp { seconds: -2, nanoseconds: 750_000_000 });
    let xattrs = [(&b"user.a"[..], &b"x=y"[..]), (b"user.a=", &[0, 1, 2, 255])];
    assert_eq!(member.xattrs, xattrs.map(|(name, value)| (name.to_vec(), value.to_vec())));
}

#[test]
fn an_empty_pax_record_is_ignored() {
    let records = [("path", ""), ("linkpath", ""), ("size", ""), ("uid", ""), ("gid", ""), ("mtime", "")];
    assert_eq!(walk(&with_pax(&records, b"abc").finish()), Ok(vec!["a abc".to_owned()]));
}

#[test]
fn a_size_in_a_pax_record_is_the_size() {
    let archive = with_pax(&[("size", "3")], b"abcdef").file("next", "1").finish();
    assert_eq!(walk(&archive), Ok(vec!["a abc".to_owned(), "next 1".to_owned()]));
}

#[test]
fn an_invalid_pax_record_is_rejected_with_the_reason() {
    for (records, expected) in [
        (("uid", "x"), "read the tar header at byte 0: PAX record uid: must be a decimal number"),
        (("uid", "4294967296"), "read tar member a: uid 4294967296: not supported by Linux"),
        (("mtime", "now"), "read the tar header at byte 0: PAX record mtime: must be a decimal"),
        (
            ("GNU.sparse.major", "2"),
            "read the tar header at byte 0: sparse files of version 2 are not supported",
        ),
        (
            ("LIBARCHIVE.xattr.user.a", "%"),
            "read the tar header at byte 0: PAX record LIBARCHIVE.xattr.user.a: must be base64",
        ),
        (
            // 4n+1 characters: the last one has no whole byte.
            ("LIBARCHIVE.xattr.user.a", "AAECA"),
            "read the tar header at byte 0: PAX record LIBARCHIVE.xattr.user.a: must be base64",
        ),
    ] {
        assert_eq!(first(with_pax(&[records], b"")).expect_err(expected), expected);
    }
    let rubbish = tar().entry(EntryType::XHeader, "p", "", 0, b"99 a=b\n").file("a", "");
    let expected =
        "read the tar header at byte 0: PAX record: must be \"<length> <key>=<value>\" and a line feed";
    assert_eq!(first(rubbish).expect_err("rubbish"), expected);
}

#[test]
fn the_size_of_pax_headers_and_long_names_is_limited() {
    let long = vec![b'n'; EXTENSION_MAX as usize + 1];
    for kind in [EntryType::XHeader, EntryType::GNULongName, EntryType::GNULongLink] {
        let error = first(tar().entry(kind, "x", "", 0, &long).file("a", "")).expect_err("too long");
        let expected = "read the tar header at byte 0: a long name or PAX header of 262145 bytes: at most 262144 are accepted";
        assert_eq!(error, expected);
    }
    let alone = tar().entry(EntryType::GNULongName, "x", "", 0, b"name\0").finish();
    assert!(walk(&alone).expect_err("alone").contains("without the member it describes"));
}

#[test]
fn sparse_maps_that_do_not_add_up_are_refused() {
    let sparse = |map: &str, size: &str, data: &[u8]| {
        with_pax(&[("GNU.sparse.map", map), ("GNU.sparse.size", size), ("GNU.sparse.name", "s")], data)
            .finish()
    };
    assert_eq!(walk(&sparse("2,3,8,1", "10", b"abcd")), Ok(vec!["s \\0\\0abc\\0\\0\\0d\\0".to_owned()]));
    assert_eq!(walk(&sparse("", "3", b"")), Ok(vec!["s \\0\\0\\0".to_owned()]));
    for (map, size, data) in [
        ("2,3", "4", &b"abc"[..]),
        ("2,3", "10", b"ab"),
        ("4,2,2,2", "10", b"abcd"),
        ("18446744073709551615,2", "10", b"ab"),
    ] {
        assert!(walk(&sparse(map, size, data)).expect_err(map).contains("sparse map: "), "{map}");
    }
    assert!(walk(&sparse("1", "10", b"")).expect_err("odd").contains("must be pairs"));
}

#[test]
fn members_that_no_layer_can_have_are_refused() {
    let odd = tar().entry(EntryType::new(b'V'), "volume", "", 0, &[]).finish();
    assert_eq!(walk(&odd), Err("read tar member volume: type 'V' is not allowed in a layer".to_owned()));
}

#[test]
fn a_damaged_header_is_refused() {
    let mut archive = tar().file("a", "1").file("b", "2").finish();
    archive[1024] ^= 1;
    let expected = "read the tar header at byte 1024: checksum mismatch: not a tar archive, or damaged";
    assert_eq!(walk(&archive), Err(expected.to_owned()));
    let whole = tar().file("a", "1").finish();
    assert!(walk(&whole[..513]).is_err());
    assert_eq!(walk(&whole[..1024]), Ok(vec!["a 1".to_owned()]), "Go takes an archive without its end, too");
    assert_eq!(walk(&whole[..1536]), Ok(vec!["a 1".to_owned()]), "and one with half of it");
    let hidden = [&whole[..1536], &tar().file("b", "2").finish()].concat();
    let expected = "read the tar header at byte 1024: an empty block, which does not end the archive";
    assert_eq!(walk(&hidden), Err(expected.to_owned()));
}

#[test]
fn numbers_in_headers_are_read_as_go_reads_them() {
    for (field, expected) in [
        (&b"0000644\0"[..], Some(0o644)),
        (b"   644 \0", Some(0o644)),
        (b"644\0 junk", Some(0o644)),
        (b"\0\0\0\0\0\0\0\0", Some(0)),
        (b"        ", Some(0)),
        (b"7777777", Some(0o7777777)),
        (b"\x80\0\0\0\xff\0\0\0", Some(0xff00_0000)),
        (b"\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
        (b"\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
        (b"12x", None),
        (b"8", None),
    ] {
        assert_eq!(number(field), expected, "{}", shown(field));
    }
}

#[test]
fn an_archive_with_endless_zeros_after_its_end_is_refused() {
    let archive = tar().file("a", "1").finish();
    let padded = |zeros: u64| {
        let mut members = Members::new((&archive[..]).chain(io::repeat(0).take(zeros)));
        while members.next().expect("a member").is_some() {}
        members.finish().map_err(|error| error.to_string())
    };
    assert_eq!(padded(1 << 20), Ok(()));
    let error = padded(u64::MAX).unwrap_err();
    assert!(error.ends_with("more than 16 MiB of zeros after its end: not a tar archive"), "{error}");
}

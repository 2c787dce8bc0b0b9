use super::*;

fn platform() -> Platform {
    Platform::new("linux", "arm64", None)
}

/// Why an offer is refused, and whether the sender talks nonsense.
fn refused(message: &Value) -> (String, bool) {
    match Offer::of(message, &platform()) {
        Ok(_) => panic!("{message} was taken"),
        Err(End::Wire(error)) => (error.to_string(), true),
        Err(End::Refused(why)) => (why, false),
        Err(End::Busy) => panic!("{message} is no push"),
    }
}

#[test]
fn an_offer_that_cannot_be_is_refused() {
    let with = |archive: Value| json!({"archives": [archive], "manifests": []});
    for (message, expected, nonsense) in [
        (json!([]), "an offer lacks a list", true),
        (json!({"archives": []}), "an offer lacks a list", true),
        (with(json!(7)), "an archive without documents", true),
        (with(json!({"../x": ""})), "a document's name leads elsewhere", true),
        (with(json!({"index.json": 7})), "a document that is no text", true),
        (with(json!({})), "neither index.json", false),
        (with(json!({"index.json": "{"})), "read index.json", false),
        (json!({"archives": [], "manifests": [{"place": "a"}]}), "a manifest without a place", true),
    ] {
        let (why, is_nonsense) = refused(&message);
        assert!(why.contains(expected) && is_nonsense == nonsense, "{message}: {why}");
    }
    let whole = json!({"archives": [], "manifests": [], "validation": "warn", "dryRun": true});
    let Ok(offer) = Offer::of(&whole, &platform()) else { panic!("it is right") };
    assert!(offer.dry_run && offer.validation == Validation::Warn);
}

#[test]
fn a_spool_is_one_pushs_and_forgets_what_the_next_does_not_send() {
    let root = std::env::temp_dir().join(format!("nodlet-push-{}", std::process::id()));
    let directory = root.join("push");
    let Ok(spool) = Spool::open(&directory) else { panic!("it is free") };
    assert!(matches!(Spool::open(&directory), Err(End::Busy)), "it is taken");
    for name in ["a.part", "b.part"] {
        fs::write(directory.join(name), "x").expect("written");
    }
    assert!(spool.forget(|name| name != "a.part").is_ok());
    let left: Vec<_> =
        fs::read_dir(&directory).expect("there").flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["a.part"]);
    assert!(spool.room_for(0).is_ok());
    let Err(End::Refused(why)) = spool.room_for(u64::MAX) else { panic!("no disk is so large") };
    assert!(why.contains("has no room"), "{why}");
    fs::remove_dir_all(root).expect("removed");
}

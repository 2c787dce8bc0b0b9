//! Options of requests and forms of responses, over a real socket.

use super::*;

#[test]
fn a_list_comes_in_parts_of_one_state() {
    let objects = pods(&["c", "a", "b"].map(|name| (name, "Pending")));
    let changing = objects.clone();
    let engine = move |request| {
        if let Request::Delete { name, reply, .. } = request {
            changing.delete(&key(&name));
            changing.put(key("d"), pod("d", "Pending"));
            let _ = reply.try_send(Ok(Value::Null));
        }
    };
    with_api(objects, engine, |socket| {
        let names = |list: &Value| -> String {
            let items = list["items"].as_array().expect("a list").iter();
            items.map(|item| item["metadata"]["name"].as_str().expect("a name")).collect()
        };
        let (_, first) = get(&socket, "/api/v1/pods?limit=1");
        let part = |from: &Value, more: &str| {
            let token = from["metadata"]["continue"].as_str().expect("there is more");
            get(&socket, &format!("/api/v1/pods?continue={token}{more}")).1
        };
        assert_eq!((names(&first).as_str(), &first["metadata"]["remainingItemCount"]), ("a", &json!(2)));
        call(&socket, "DELETE", "/api/v1/namespaces/default/pods/b", "", "");
        let second = part(&first, "&limit=1");
        assert_eq!((names(&second).as_str(), &second["metadata"]["remainingItemCount"]), ("b", &json!(1)));
        assert_eq!(first["metadata"]["resourceVersion"], second["metadata"]["resourceVersion"]);
        let last = part(&second, "");
        assert_eq!((names(&last).as_str(), last["metadata"].get("continue")), ("c", None));
        let (_, selected) = get(&socket, "/api/v1/pods?limit=1&labelSelector=app+in+(a,d)");
        assert_eq!(names(&selected), "a");
        assert_eq!(selected["metadata"].get("remainingItemCount"), None);
        assert_eq!(names(&part(&selected, "&labelSelector=app+in+(a,d)")), "d");
        let version = first["metadata"]["resourceVersion"].as_str().expect("a version");
        let exact = format!("/api/v1/pods?resourceVersion={version}&resourceVersionMatch=Exact");
        assert_eq!(names(&get(&socket, &exact).1), "abc");
        assert_eq!(names(&get(&socket, "/api/v1/pods?limit=1&resourceVersion=0").1), "acd");
        for resource in ["pods", "namespaces"] {
            let (code, forged) =
                get(&socket, &format!("/api/v1/{resource}?continue=18446744073709551615/a/b"));
            assert_eq!((code, &forged["reason"]), (410, &json!("Expired")), "{resource}");
        }
    });
}

#[test]
fn objects_are_shown_in_the_form_that_a_client_accepts() {
    with_api(pods(&[("web", "Pending")]), no_engine, |socket| {
        let shown = |accept: &str, target: &str| {
            let (code, body) = call(&socket, "GET", target, &format!("accept: {accept}\r\n"), "");
            let body = body.lines().find(|line| line.starts_with('{')).unwrap_or(&body).to_owned();
            let body: Value = serde_json::from_str(&body).expect("JSON");
            (code, body)
        };
        let form = |kind: &str| format!("application/json;as={kind};v=v1;g=meta.k8s.io");
        let (one, all) = ("/api/v1/namespaces/default/pods/web", "/api/v1/pods");
        for (accept, target, code, kind) in [
            ("*/*", one, 200, "Pod"),
            ("text/html, */*;q=0.8", one, 200, "Pod"),
            ("application/vnd.kubernetes.protobuf,application/json", all, 200, "PodList"),
            (&form("Table"), one, 200, "Table"),
            (&form("PartialObjectMetadata"), one, 200, "PartialObjectMetadata"),
            (&form("PartialObjectMetadataList"), all, 200, "PartialObjectMetadataList"),
            (&form("PartialObjectMetadataList"), one, 406, "Status"),
            (&form("PartialObjectMetadata"), all, 406, "Status"),
            (&form("Other"), one, 406, "Status"),
            (&format!("{},application/json", form("Other")), one, 200, "Pod"),
            ("application/yaml", one, 406, "Status"),
            ("text/html", "/api/v1/namespaces/default/pods/web/log", 400, "Status"),
        ] {
            let (answered, body) = shown(accept, target);
            assert_eq!((answered, &body["kind"]), (code, &json!(kind)), "{accept} {target}: {body}");
        }
        let (_, list) = shown(&form("PartialObjectMetadataList"), all);
        let item = &list["items"][0];
        assert_eq!(item["kind"], "PartialObjectMetadata");
        assert_eq!(item["metadata"]["name"], "web");
        assert!(item.get("spec").is_none() && list["metadata"]["resourceVersion"].is_string(), "{list}");
        let (_, event) = shown(&form("PartialObjectMetadata"), "/api/v1/pods?watch=1&timeoutSeconds=0");
        assert_eq!(event["object"]["kind"], "PartialObjectMetadata", "{event}");
        assert!(event["object"].get("status").is_none(), "{event}");
    });
}

#[test]
fn a_field_that_occurs_twice_is_refused_or_warned_about() {
    let engine = |request| {
        let Request::Create { object, validation, dry_run, reply } = request else { panic!("{request:?}") };
        assert_eq!(dry_run, validation == FieldValidation::Strict, "what will be refused is not done");
        let _ = reply.try_send(match object["metadata"]["name"].as_str() {
            Some("unknown") => Err(Status::bad_request("x: strict decoding error: unknown field \"z\"")),
            _ => Ok(Accepted { object, applied: Applied::Created, warnings: vec!["other".to_owned()] }),
        });
    };
    with_no_objects(engine, |socket| {
        let send = |query: &str, name: &str| {
            let body = format!(r#"{{"metadata":{{"name":"x","name":"{name}"}},"spec":{{}},"spec":{{}}}}"#);
            whole(&socket, "POST", &format!("/api/v1/namespaces/default/pods?{query}"), "", &body)
        };
        let strict = r#"Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: duplicate field \"metadata.name\", duplicate field \"spec\""#;
        let answer = send("fieldValidation=Strict", "a");
        assert!(answer.contains(" 400 ") && answer.contains(&format!("{strict}\"")), "{answer}");
        let answer = send("fieldValidation=Strict", "unknown");
        assert!(answer.contains(&format!(r#"{strict}, unknown field \"z\"""#)), "{answer}");
        let answer = send("", "a");
        let warnings: Vec<&str> = answer.lines().filter_map(|line| line.strip_prefix("warning: ")).collect();
        let expected = [
            r#"299 - "duplicate field \"metadata.name\"""#,
            r#"299 - "duplicate field \"spec\"""#,
            r#"299 - "other""#,
        ];
        assert_eq!(warnings, expected, "{answer}");
        assert_eq!(send("fieldValidation=Ignore", "a").matches("warning: ").count(), 1);
    });
}

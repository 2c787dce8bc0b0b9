//! Authentication and authorization of the kubelet's server: who sent a request, what the API server is asked about it,
//! and how long its answers count. Pure.

use std::time::{Duration, Instant};

use nodlet_core::sorted::SortedMap;
use nodlet_wire::tls::certificate::{COMMON_NAME, ORGANIZATION};
use nodlet_wire::tls::der::{self, Certificate};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The path of reviews of tokens.
pub const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// The path of reviews of access.
pub const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// How long the answer about a token counts (`authentication.webhook.cacheTTL`).
pub const TOKEN_FOR: Duration = Duration::from_secs(120);

/// How long an answer counts that allows a request (`authorization.webhook.cacheAuthorizedTTL`).
const ALLOWED_FOR: Duration = Duration::from_secs(300);

/// How long an answer counts that denies a request (`authorization.webhook.cacheUnauthorizedTTL`).
const DENIED_FOR: Duration = Duration::from_secs(30);

/// Answers of the API server of each kind that are kept.
const ANSWERS: usize = 256;

/// The user with this client certificate (DER), which was verified: `user` and `groups` of a SubjectAccessReview.
pub fn user_of_certificate(certificate: &[u8]) -> Option<Value> {
    let certificate = Certificate::parse(certificate)?;
    let name = der::names(certificate.subject, COMMON_NAME).pop().filter(|name| !name.is_empty())?;
    let mut groups = der::names(certificate.subject, ORGANIZATION);
    groups.push("system:authenticated".to_owned());
    Some(json!({ "user": name, "groups": groups }))
}

/// The question who has a token.
pub fn token_review(token: &str) -> Value {
    json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": { "token": token },
    })
}

/// The user of a reviewed token; `None` if the token is not valid.
pub fn user_of_token(review: &Value) -> Option<Value> {
    let status = &review["status"];
    let user = &status["user"];
    match (&status["authenticated"], &user["username"]) {
        (Value::Bool(true), Value::String(name)) if !name.is_empty() => Some(json!({
            "user": name, "uid": user["uid"], "groups": user["groups"], "extra": user["extra"],
        })),
        _ => None,
    }
}

/// The verb and the subresources of the node for a request: each of the subresources allows it
/// (`GetRequestAttributes` in pkg/kubelet/server/auth.go).
pub fn attributes(method: &str, path: &str) -> (&'static str, &'static [&'static str]) {
    let verb = match method {
        "GET" => "get",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    };
    let first = path.strip_prefix('/').unwrap_or(path);
    let first = first.split_once('/').map_or(first, |(first, _)| first);
    let subresources: &[&str] = match first {
        "pods" | "runningpods" => &["pods", "proxy"],
        "healthz" => &["healthz", "proxy"],
        "configz" => &["configz", "proxy"],
        "stats" => &["stats"],
        "metrics" => &["metrics"],
        "logs" => &["log"],
        "checkpoint" => &["checkpoint"],
        _ => &["proxy"],
    };
    (verb, subresources)
}

/// The question whether `user` may use a subresource of the node.
pub fn access_review(user: &Value, node: &str, verb: &str, subresource: &str) -> Value {
    let mut spec = user.clone();
    spec["resourceAttributes"] = json!({ "verb": verb, "version": "v1", "resource": "nodes", "subresource": subresource, "name": node });
    json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec })
}

/// Whether a review allows the request, and how long that counts.
pub fn is_allowed(review: &Value) -> (bool, Duration) {
    if review["status"]["allowed"] == true { (true, ALLOWED_FOR) } else { (false, DENIED_FOR) }
}

/// The latest answers of the API server to questions of one kind: a question is a text that a client may have chosen, so
/// that the text of a token may be that of a question about access. Denials have places of their own: clients whose
/// tokens are not valid, or that may do nothing, displace only each other's answers.
#[derive(Debug)]
pub struct Answers<T> {
    granted: Latest<T>,
    denied: Latest<()>,
}

/// Answers about tokens: the user of a valid one.
pub type TokenAnswers = Answers<Value>;

/// Answers about access.
pub type AccessAnswers = Answers<()>;

impl<T> Default for Answers<T> {
    fn default() -> Self {
        Answers { granted: Latest::default(), denied: Latest::default() }
    }
}

impl<T: Clone> Answers<T> {
    /// The answer to a question, if it still counts: `Some(None)` is a denial.
    pub fn get(&self, question: &str, now: Instant) -> Option<Option<T>> {
        let question = hash(question);
        match self.granted.get(&question, now) {
            Some(answer) => Some(Some(answer.clone())),
            None => self.denied.get(&question, now).map(|()| None),
        }
    }

    /// Keeps an answer until then, instead of an earlier one to the question.
    pub fn put(&mut self, question: &str, answer: Option<T>, until: Instant) {
        let question = hash(question);
        self.granted.answers.remove(&question);
        self.denied.answers.remove(&question);
        match answer {
            Some(answer) => self.granted.put(question, answer, until),
            None => self.denied.put(question, (), until),
        }
    }
}

/// [`ANSWERS`] answers by the hashes of their questions, which contain tokens.
#[derive(Debug)]
struct Latest<T> {
    answers: SortedMap<[u8; 32], (Instant, T)>,
}

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Latest { answers: SortedMap::new() }
    }
}

impl<T> Latest<T> {
    fn get(&self, question: &[u8; 32], now: Instant) -> Option<&T> {
        self.answers.get(question).filter(|(until, _)| now < *until).map(|(_, answer)| answer)
    }

    /// The answer that counts for the shortest time makes room for the new one.
    fn put(&mut self, question: [u8; 32], answer: T, until: Instant) {
        while self.answers.len() >= ANSWERS
            && let Some(first) = self.answers.iter().min_by_key(|(_, (until, _))| *until)
        {
            let first = *first.0;
            self.answers.remove(&first);
        }
        self.answers.insert(question, (until, answer));
    }
}

fn hash(question: &str) -> [u8; 32] {
    Sha256::digest(question).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_attributes_of_a_kubelets() {
        for (method, path, expected) in [
            ("GET", "/stats/summary", "get stats"),
            ("GET", "/metrics/resource", "get metrics"),
            ("GET", "/metrics", "get metrics"),
            ("GET", "/metricsx", "get proxy"),
            ("GET", "/logs/", "get log"),
            ("GET", "/pods", "get pods proxy"),
            ("GET", "/runningpods/", "get pods proxy"),
            ("GET", "/healthz/ping", "get healthz proxy"),
            ("GET", "/configz", "get configz proxy"),
            ("POST", "/checkpoint/a/b/c", "create checkpoint"),
            ("POST", "/exec/a/b/c", "create proxy"),
            ("PUT", "/containerLogs/a/b/c", "update proxy"),
            ("DELETE", "//pods", "delete proxy"),
            ("TRACE", "", " proxy"),
        ] {
            let (verb, subresources) = attributes(method, path);
            assert_eq!([&[verb], subresources].concat().join(" "), expected, "{method} {path}");
        }
    }

    #[test]
    fn users_come_from_verified_tokens_and_certificates_only() {
        let review =
            json!({ "status": { "authenticated": true, "user": { "username": "a", "groups": ["b"] } } });
        assert_eq!(user_of_token(&review).expect("a user")["groups"], json!(["b"]));
        for other in [
            json!({}),
            json!({ "status": { "authenticated": false, "user": { "username": "a" } } }),
            json!({ "status": { "authenticated": true, "user": { "username": "" } } }),
            json!({ "status": { "user": { "username": "a" } } }),
        ] {
            assert_eq!(user_of_token(&other), None, "{other}");
        }
        let key = nodlet_wire::tls::ClientKey::generate().expect("a key");
        let user = user_of_certificate(&key.self_signed("system:node:a", &[])).expect("a name");
        assert_eq!(user, json!({ "user": "system:node:a", "groups": ["system:authenticated"] }));
        assert_eq!(user_of_certificate(&key.self_signed("", &[])), None);
        assert_eq!(user_of_certificate(&[0x30, 0]), None);
        let review = access_review(&user, "b", "get", "proxy");
        assert_eq!(review["spec"]["user"], "system:node:a");
        assert_eq!(review["spec"]["resourceAttributes"]["name"], "b");
        assert!(is_allowed(&json!({ "status": { "allowed": true } })).0);
        assert!(!is_allowed(&json!({ "status": { "allowed": "true" } })).0);
    }

    #[test]
    fn answers_count_for_a_time_and_are_bounded() {
        let (mut answers, now) = (TokenAnswers::default(), Instant::now());
        answers.put("a", Some(json!(1)), now + TOKEN_FOR);
        assert_eq!(answers.get("a", now), Some(Some(json!(1))));
        assert_eq!(answers.get("a", now + TOKEN_FOR), None);
        assert_eq!(answers.get("b", now), None);
        for number in 0..2 * ANSWERS {
            answers.put(&number.to_string(), Some(json!(number)), now + DENIED_FOR);
        }
        assert_eq!(answers.granted.answers.len(), ANSWERS);
        // Those that count longer stay.
        assert_eq!(answers.get("a", now), Some(Some(json!(1))));
    }

    #[test]
    fn denials_displace_only_denials() {
        let (mut answers, now) = (AccessAnswers::default(), Instant::now());
        answers.put("the API server", Some(()), now + DENIED_FOR);
        for number in 0..2 * ANSWERS {
            answers.put(&number.to_string(), None, now + ALLOWED_FOR);
        }
        assert_eq!(answers.denied.answers.len(), ANSWERS);
        assert_eq!(answers.get("the API server", now), Some(Some(())));
        assert_eq!(answers.get(&(2 * ANSWERS - 1).to_string(), now), Some(None));
    }

    #[test]
    fn the_latest_answer_to_a_question_counts() {
        let (mut answers, now) = (AccessAnswers::default(), Instant::now());
        answers.put("a", Some(()), now + ALLOWED_FOR);
        answers.put("a", None, now + DENIED_FOR);
        assert_eq!(answers.get("a", now), Some(None));
        assert_eq!(answers.get("a", now + DENIED_FOR), None);
        answers.put("a", Some(()), now + ALLOWED_FOR);
        assert_eq!(answers.get("a", now + DENIED_FOR), Some(Some(())));
    }
}

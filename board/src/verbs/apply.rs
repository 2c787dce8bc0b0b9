//! `nodlet apply`: creates or changes the objects of manifests. The agent validates the manifests, and
//! replaces a pod that cannot be changed in place.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lexopt::Parser;
use nodlet_core::sorted::SortedSet;
use nodlet_core::spec::Pod;
use nodlet_kube::kinds::Kind;
use nodlet_kube::manifest::{self, Validation};
use nodlet_rootfs::{Reference, Store, StoreError};

use crate::arguments::{Context, value};
use crate::client::{Client, encode};
use crate::error::VerbError;
use crate::verb::{Outcome, Verb};
use crate::verbs::files::{self, Object};
use crate::verbs::hint;

pub(crate) const VERB: Verb =
    Verb { name: "apply", summary: "Create or update the objects of manifests", run };

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let apply = Apply::parse(&mut context, &mut parser)?;
    let (objects, failures) = files::read(&apply.files, apply.validation)?;
    let mut validator = match apply.dry_run {
        DryRun::Client => Validator::Here(Images::of(&context.root)?),
        DryRun::None | DryRun::Server => Validator::Agent(Client::new(&context)?),
    };
    let mut code = ExitCode::SUCCESS;
    for failure in failures {
        eprintln!("{failure}");
        code = ExitCode::FAILURE;
    }
    for object in &objects {
        for warning in &object.warnings {
            eprintln!("Warning: {}: {warning}", object.place);
        }
        match apply.object(&context, &mut validator, object) {
            Ok(line) => println!("{line}"),
            // Without an agent the remaining objects would fail, too.
            Err(failure) if failure.is_disconnected() => return Err(failure),
            Err(failure) => {
                eprintln!("{}: {failure}{}", object.place, hint::of(&failure.to_string()));
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

/// The modes of kubectl's `--dry-run`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DryRun {
    #[default]
    None,
    Server,
    Client,
}

/// Where manifests are validated.
enum Validator {
    Agent(Client),
    /// In this process (`--dry-run=client`).
    Here(Option<Images>),
}

/// The image store below a root, for warnings about missing images.
struct Images {
    store: Store,
    /// Images that a warning has already named.
    missing: SortedSet<String>,
}

impl Images {
    /// Opens the image store below the root. Returns `None` if there is none: the root is not a board's then.
    fn of(root: &Path) -> Result<Option<Images>, VerbError> {
        let store = Store::open(root).map_err(|error: StoreError| VerbError::chain(&error))?;
        Ok(store.exists().then(|| Images { store, missing: SortedSet::new() }))
    }

    /// Images of a pod that the store lacks. Each image is returned once.
    fn missing(&mut self, pod: &Pod) -> Result<Vec<String>, VerbError> {
        let mut missing = Vec::new();
        let containers = pod.spec.init_containers.iter().chain(&pod.spec.containers);
        let of_volumes = pod.spec.image_volumes().map(|(_, image, _)| image);
        for image in containers.map(|container| &*container.image).chain(of_volumes) {
            let Ok(reference) = Reference::parse(image) else { continue };
            let found = self.store.find(&reference).map_err(|error| VerbError::chain(&error))?;
            if found.is_none() && self.missing.insert(image.to_owned()) {
                missing.push(image.to_owned());
            }
        }
        Ok(missing)
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Apply {
    files: Vec<PathBuf>,
    validation: Validation,
    dry_run: DryRun,
}

impl Apply {
    fn parse(context: &mut Context, parser: &mut Parser) -> Result<Apply, VerbError> {
        let mut apply = Apply::default();
        while let Some(flag) = context.next_flag(parser)? {
            match flag.as_str() {
                "-f" | "--filename" => apply.files.push(parser.value()?.into()),
                "--dry-run" => apply.dry_run = which_dry_run(parser)?,
                "--validate" => apply.validation = validation(parser)?,
                other => context.namespaced(other, parser)?,
            }
        }
        if apply.files.is_empty() {
            return Err(context.wrong_use("must specify one of -f FILE, -f DIR and -f -"));
        }
        Ok(apply)
    }

    /// Applies or validates one object. Returns the line that reports the result.
    fn object(
        &self,
        context: &Context,
        validator: &mut Validator,
        object: &Object,
    ) -> Result<String, VerbError> {
        let namespace = context.namespace_of(&object.value)?;
        let (did, warnings) = match validator {
            Validator::Agent(client) => {
                let applied =
                    send(client, object, &namespace, self.validation, self.dry_run != DryRun::None)?;
                (applied.did, applied.warnings)
            }
            Validator::Here(images) => self.admit(images.as_mut(), object, &namespace)?,
        };
        for warning in warnings {
            eprintln!("Warning: {warning}");
        }
        let note = match self.dry_run {
            DryRun::None => "",
            DryRun::Server => " (server dry run)",
            DryRun::Client => " (dry run)",
        };
        Ok(format!("{did}{note}"))
    }

    /// Admits an object as an agent that does not have it yet would. Returns the result and the warnings.
    fn admit(
        &self,
        images: Option<&mut Images>,
        object: &Object,
        namespace: &str,
    ) -> Result<(String, Vec<String>), VerbError> {
        /// A node name to validate with; any valid name will do.
        const NODE: &str = "board";
        let mut value = object.value.clone();
        let kind = object.kind();
        let (_, shown) = object.collection(namespace);
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.insert("uid".to_owned(), "00000000-0000-4000-8000-000000000000".into());
            if kind.row().namespaced {
                metadata.insert("namespace".to_owned(), namespace.into());
            }
        }
        let mut warnings;
        let name;
        if kind == Kind::Pod {
            let manifest = manifest::read_new(value, self.validation, NODE).map_err(VerbError::new)?;
            warnings = manifest.warnings;
            if let Some(images) = images {
                let missing = images.missing(&manifest.pod)?;
                warnings.extend(missing.into_iter().map(|image| {
                    format!(
                        "{}: image {image:?} is not in the image store: add it with 'nodlet image load FILE', or --oci FILE of a device image",
                        object.place
                    )
                }));
            }
            name = manifest.pod.name.to_string();
        } else {
            let definition =
                manifest::read_new_definition(value, kind, self.validation, NODE).map_err(VerbError::new)?;
            (warnings, name) = (definition.warnings, definition.name.to_string());
        }
        Ok((format!("{shown}/{name} created"), warnings))
    }
}

/// The agent's response to an applied object.
pub(crate) struct Applied {
    /// `pod/web configured`
    pub(crate) did: String,
    pub(crate) warnings: Vec<String>,
    /// The object as the agent returned it.
    pub(crate) object: serde_json::Value,
}

/// Sends an object to the agent to be applied.
pub(crate) fn send(
    client: &Client,
    object: &Object,
    namespace: &str,
    validation: Validation,
    dry_run: bool,
) -> Result<Applied, VerbError> {
    let (collection, kind) = object.collection(namespace);
    let how = match validation {
        Validation::Strict => "Strict",
        Validation::Warn => "Warn",
        Validation::Ignore => "Ignore",
    };
    let dry_run = if dry_run { "&dryRun=All" } else { "" };
    let query = format!("fieldManager=nodlet-apply&fieldValidation={how}{dry_run}");
    let (method, target) = match object.name() {
        Some(name) => ("PUT", format!("{collection}/{}?force=true&{query}", encode(name))),
        None => ("POST", format!("{collection}?{query}")),
    };
    let response = client.request(method, &target, "application/json", Some(&object.value))?;
    let did = response.header("nodlet-applied").unwrap_or("created").to_owned();
    let warnings = response.warnings();
    let object = response.json()?;
    let name = object["metadata"]["name"].as_str().unwrap_or("");
    Ok(Applied { did: format!("{kind}/{name} {did}"), warnings, object })
}

/// Whether `--dry-run` asks for no changes.
pub(crate) fn dry_run(parser: &mut Parser) -> Result<bool, VerbError> {
    Ok(which_dry_run(parser)? != DryRun::None)
}

fn which_dry_run(parser: &mut Parser) -> Result<DryRun, VerbError> {
    match parser.optional_value() {
        None => Ok(DryRun::Server),
        Some(value) => match value.to_string_lossy().as_ref() {
            "server" | "true" => Ok(DryRun::Server),
            "client" => Ok(DryRun::Client),
            "none" | "false" => Ok(DryRun::None),
            other => Err(VerbError::new(format!(
                "invalid dry-run value ({other}): must be \"none\", \"server\" or \"client\""
            ))),
        },
    }
}

pub(crate) fn validation(parser: &mut Parser) -> Result<Validation, VerbError> {
    value(parser, "--validate", |text| match text {
        "true" => Ok(Validation::Strict),
        "false" => Ok(Validation::Ignore),
        text => validation_of(text).ok_or("\"strict\", \"warn\" or \"ignore\""),
    })
}

/// The words for validation, in flags, the push protocol and its records.
const VALIDATIONS: [(&str, Validation); 3] =
    [("strict", Validation::Strict), ("warn", Validation::Warn), ("ignore", Validation::Ignore)];

/// The validation that a word stands for.
pub(crate) fn validation_of(word: &str) -> Option<Validation> {
    VALIDATIONS.into_iter().find(|(name, _)| *name == word).map(|(_, validation)| validation)
}

/// The word for a validation.
pub(crate) fn validation_word(validation: Validation) -> &'static str {
    VALIDATIONS.iter().find(|(_, named)| *named == validation).map_or("strict", |(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::switch;
    use crate::testing::check;

    #[test]
    fn arguments_of_apply() {
        let file = |apply: Apply| Apply { files: vec!["a.yaml".into()], ..apply };
        let accepted = [
            ("-f a.yaml", file(Apply::default())),
            ("--filename=a.yaml --dry-run", file(Apply { dry_run: DryRun::Server, ..Apply::default() })),
            ("-f a.yaml --dry-run=client", file(Apply { dry_run: DryRun::Client, ..Apply::default() })),
            ("--dry-run=none -fa.yaml", file(Apply::default())),
            ("-f a.yaml --validate=warn", file(Apply { validation: Validation::Warn, ..Apply::default() })),
        ];
        let rejected = [
            ("", "must specify one of -f FILE"),
            ("a.yaml", "unexpected argument \"a.yaml\""),
            ("-f a --dry-run=maybe", "invalid dry-run value (maybe)"),
            ("-f a --validate=hard", "invalid value \"hard\" for --validate"),
            ("-f a --prune", "unknown flag: --prune"),
        ];
        check(VERB.name, Apply::parse, accepted, &rejected);
    }

    #[test]
    fn a_boolean_flag_does_not_consume_the_next_argument() {
        let mut parser = Parser::from_args(["--all", "web"]);
        let _ = parser.next();
        assert_eq!(switch(&mut parser).map_err(|failure| failure.to_string()), Ok(true));
        assert!(matches!(parser.next(), Ok(Some(lexopt::Arg::Value(_)))));
    }
}

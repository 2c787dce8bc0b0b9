//! Definitions, which are the objects of manifests other than pods: which ones exist, and how clients create,
//! change and delete them. A change of a definition does not affect admitted pods.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use super::live_objects::{DefinitionName, key};
use super::present::as_published;
use super::request::{RequestOptions, refused, same};
use super::sources::SourceFile;
use super::{
    Accepted, Applied, Change, Decision, DefinitionsByName, Preconditions, Refusal, Registry, Status, Write,
    Written, preconditions,
};
use nodlet_kube::kinds::{Kind, priority_class};
use nodlet_kube::manifest::{self, Definition};
use nodlet_services::allocation::adopt;

impl Registry {
    /// Publishes the current definitions of the sources. Returns the rejections of definitions, and the names of
    /// those that were created, changed or deleted. `now` is the current time, and `began` the start time of the
    /// node, in the format of `creationTimestamp`.
    pub fn read_definitions(&mut self, now: &str, began: &str) -> (Vec<Refusal>, Vec<DefinitionName>) {
        let (definitions, mut refusals) = self.sources.definitions();
        refuse_defaults(&definitions, &mut refusals);
        let mut changed = Vec::new();
        // `bind_claims` publishes volumes and claims, `complete_services` Services.
        let is_here = |name: &&DefinitionName| {
            !matches!(name.0, Kind::PersistentVolume | Kind::PersistentVolumeClaim | Kind::Service)
        };
        for name in self.definitions.keys().filter(is_here).filter(|name| !definitions.contains_key(*name)) {
            self.objects.delete(&key(name));
            changed.push(name.clone());
        }
        for (name, (definition, _)) in definitions.iter().filter(|(name, _)| is_here(name)) {
            let known = self.definitions.get(name).is_some_and(|(known, _)| Rc::ptr_eq(known, definition));
            if !known {
                self.objects.put(key(name), self.with_creation(definition, now));
                changed.push(name.clone());
            }
        }
        let (rejected, completed) = self.complete_services(&definitions, now);
        refusals.extend(rejected);
        changed.extend(completed);
        self.definitions = definitions;
        self.publish_built_in_classes(began);
        (refusals, changed)
    }

    /// Decides on a definition that a client sends, after [`Registry::prepare`].
    ///
    /// # Errors
    /// The definition is invalid, or must not exist.
    pub fn apply_definition(
        &mut self,
        kind: Kind,
        mut object: Value,
        options: RequestOptions,
    ) -> Result<Decision, Status> {
        if kind == Kind::Service {
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
            let namespace = if text("namespace").is_empty() { "default" } else { text("namespace") };
            let old = self.published_definition(&(kind, namespace.into(), text("name").into()));
            adopt(old.as_ref(), &mut object);
        }
        let mut definition = manifest::read_new_definition(object, kind, options.validation, &self.node)
            .map_err(|error| refused(&error))?;
        let name = definition.key();
        if let Some(refusal) = self.refuse_change_of_made(&name).filter(|_| !options.new) {
            return Err(refusal);
        }
        let published = self.published_definition(&name);
        let is_of_file =
            self.definitions.get(&name).is_some_and(|(_, source)| *source != self.definition_path(&name));
        let will_be_rejected = is_of_file || (options.new && published.is_some());
        if kind == Kind::Service && !will_be_rejected {
            definition = self.complete_request(definition, published.as_ref(), options)?;
        }
        let applied = self.outcome_of(&definition, published.as_ref(), options.new)?;
        let (mut object, warnings) = (definition.object(), definition.warnings.clone());
        let mut applied = applied;
        // Only the published object has the `claimRef` of a binding: its removal may leave the file as it is.
        let is_claimed = |object: &Value| object["spec"]["claimRef"].is_object();
        if kind == Kind::PersistentVolume
            && !options.keeps_claim
            && !is_claimed(&object)
            && published.as_ref().is_some_and(is_claimed)
        {
            applied = Applied::Configured;
            if !options.dry_run {
                self.unclaim(&name.2);
            }
        }
        if let Some(published) = &published {
            // An update keeps the identity of the object.
            for field in ["uid", "creationTimestamp"] {
                object["metadata"][field] = published["metadata"][field].clone();
            }
        }
        if applied == Applied::Unchanged {
            let object = published.unwrap_or(object);
            return Ok(Decision::Reply(Accepted { object, applied, warnings }, None));
        }
        let (path, qualified) = (self.definition_path(&name), kind.row().qualified());
        let called = (&*qualified, &*name.2);
        if options.dry_run {
            self.check_room(&path, called, &object)?;
            match &published {
                Some(published) => as_published(published, &mut object),
                None if matches!(kind, Kind::PersistentVolume | Kind::PersistentVolumeClaim) => {
                    object["status"] = json!({"phase": "Pending"});
                }
                None if kind == Kind::Service => object["status"] = json!({"loadBalancer": {}}),
                None => {}
            }
            return Ok(Decision::Reply(Accepted { object, applied, warnings }, None));
        }
        let json = to_raw_value(&object).map_err(Status::internal)?;
        let file = SourceFile::of_definition(Definition { json, warnings: Vec::new(), ..definition });
        let text = match self.text_within_quota(&path, called, &object) {
            Ok(text) => text,
            Err(status) => {
                self.hold_published(&name);
                return Err(status);
            }
        };
        let (file, of) = (file.with_text(&text), Written::Definition(name));
        Ok(Decision::Write(Box::new(Write { path, text, file, of, object, applied, warnings })))
    }

    /// Returns the outcome of applying `new` over `published`, if that is allowed.
    fn outcome_of(
        &self,
        new: &Definition,
        published: Option<&Value>,
        is_new: bool,
    ) -> Result<Applied, Status> {
        let (name, qualified, object) = (new.key(), new.kind.row().qualified(), new.object());
        let known = self.definitions.get(&name);
        if is_new && published.is_some() {
            return Err(Status::already_exists(&qualified, &new.name));
        }
        if let Some((_, source)) = known.filter(|(_, source)| *source != self.definition_path(&name)) {
            return Err(defined_by(&name, source));
        }
        if let Some(old) = published {
            manifest::check_definition_update(new.kind, old, &object).map_err(|error| refused(&error))?;
        }
        if new.kind == Kind::PersistentVolumeClaim && published.is_none() {
            let checked = self.check_claim(&new.namespace, &object);
            checked.map_err(|why| {
                Status::forbidden(format!("{qualified} \"{}\" is forbidden: {why}", new.name))
            })?;
        }
        if new.kind == Kind::PriorityClass {
            let defaults = self.definitions.iter().filter(|(other, (class, _))| {
                **other != name
                    && other.0 == Kind::PriorityClass
                    && priority_class::class(&class.object()).global_default
            });
            if let Some(((_, _, other), _)) = defaults.into_iter().next()
                && priority_class::class(&object).global_default
            {
                return Err(Status::forbidden(one_default(&new.name, other)));
            }
        }
        Ok(match known {
            Some((known, _)) if same(known.json.get(), &object) => Applied::Unchanged,
            _ if published.is_some() => Applied::Configured,
            _ => Applied::Created,
        })
    }

    /// Returns a definition with a client's change, which must then be applied like a complete object.
    ///
    /// # Errors
    /// The definition does not exist, or does not meet the preconditions.
    pub fn change_definition(&self, key: &DefinitionName, change: Change) -> Result<Value, Status> {
        let ((kind, ..), name) = (key, &*key.2);
        let current = self.published_definition(key);
        let current = current.ok_or_else(|| Status::not_found(&kind.row().qualified(), name))?;
        let mut changed = change.apply(&current)?;
        preconditions::check(&current, &changed, (&kind.row().qualified(), name))?;
        if changed["metadata"]["name"] != *name {
            return Err(Status::bad_request(format!(
                "the name of the object ({}) does not match the name on the URL ({name})",
                changed["metadata"]["name"]
            )));
        }
        for field in ["apiVersion", "kind"] {
            changed[field] = current[field].clone();
        }
        Ok(changed)
    }

    /// Returns the object that a client may remove, and its file.
    ///
    /// # Errors
    /// The object does not exist, does not meet the preconditions, or is defined by another file.
    pub fn delete_definition(
        &self,
        name: &DefinitionName,
        preconditions: &Preconditions,
    ) -> Result<(Value, PathBuf), Status> {
        let qualified = name.0.row().qualified();
        let object = self.published_definition(name).ok_or_else(|| Status::not_found(&qualified, &name.2))?;
        if let Some(refusal) = self.refuse_change_of_made(name) {
            return Err(refusal);
        }
        if name.0 == Kind::PriorityClass
            && priority_class::BUILT_IN.iter().any(|(known, ..)| **known == *name.2)
        {
            return Err(Status::forbidden(format!(
                "{qualified} \"{}\" is forbidden: this is a system priority class and cannot be deleted",
                name.2
            )));
        }
        preconditions.check(&name.0.row().qualified_kind(), &name.2, &object)?;
        let Some((_, source)) = self.definitions.get(name) else {
            return Err(Status::not_found(&qualified, &name.2));
        };
        if *source != self.definition_path(name) {
            return Err(defined_by(name, source));
        }
        Ok((object, source.clone()))
    }

    fn publish_built_in_classes(&self, created: &str) {
        for (name, value, description) in priority_class::BUILT_IN {
            let name: DefinitionName = (Kind::PriorityClass, "".into(), name.into());
            if self.definitions.contains_key(&name) || self.objects.get(&key(&name)).is_some() {
                continue;
            }
            let object = json!({
                "apiVersion": Kind::PriorityClass.version(),
                "kind": Kind::PriorityClass.as_str(),
                "metadata": {
                    "name": &*name.2, "uid": &*name.2, "creationTimestamp": created, "generation": 1,
                },
                "value": value,
                "description": description,
                "preemptionPolicy": "PreemptLowerPriority",
            });
            self.objects.put(key(&name), object);
        }
    }
}

/// Rejects `globalDefault` of all default classes in files except the one with the lowest value. The others
/// remain classes without a default.
fn refuse_defaults(definitions: &DefinitionsByName, refusals: &mut Vec<Refusal>) {
    let mut defaults: Vec<(i32, &DefinitionName, &PathBuf)> = definitions
        .iter()
        .filter(|(name, _)| name.0 == Kind::PriorityClass)
        .map(|(name, (class, source))| (priority_class::class(&class.object()), name, source))
        .filter(|(class, ..)| class.global_default)
        .map(|(class, name, source)| (class.value, name, source))
        .collect();
    defaults.sort();
    let Some(((_, first, _), others)) = defaults.split_first() else { return };
    for (_, name, source) in others {
        let message = format!(
            "{}: globalDefault of PriorityClass {} is ignored: {} is the default, because its value is lower or its name comes first",
            source.display(),
            name.2,
            first.2
        );
        let object = Some((*name).clone());
        refusals.push(Refusal { source: (*source).clone(), object, message });
    }
}

fn one_default(class: &str, other: &str) -> String {
    format!(
        "{} \"{class}\" is forbidden: PriorityClass {other} is already marked as default. Only one default can exist",
        Kind::PriorityClass.row().qualified()
    )
}

fn defined_by(name: &DefinitionName, file: &Path) -> Status {
    Status::forbidden(format!(
        "{} \"{}\" is forbidden: it is defined by {}; change that file",
        name.0.row().qualified(),
        name.2,
        file.display()
    ))
}

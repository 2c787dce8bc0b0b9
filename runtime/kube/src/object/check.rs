//! A field of an object under validation: its value and its path, and the rules that many fields share, with the errors
//! of Kubernetes.

use std::cell::Cell;

use nodlet_core::sorted::SortedSet;
use serde_json::Value;

use super::field::{Errors, FieldError, FieldErrorKind, Path, printed, quoted};
use super::rules;
use super::value::{list, map, text};

/// A value at its path. The rules that it breaks become errors of the object. A missing field has the value null.
#[derive(Clone, Copy)]
pub(crate) struct Field<'v, 'p> {
    pub(crate) value: &'v Value,
    pub(crate) path: Path<'p>,
    errors: &'p Cell<Errors>,
}

impl<'v, 'p> Field<'v, 'p> {
    /// A field of the object itself.
    pub(crate) fn root(value: &'v Value, name: &'p str, errors: &'p mut Errors) -> Self {
        Field { value, path: Path::root(name), errors: Cell::from_mut(errors) }
    }

    /// The same field with another value.
    pub(crate) fn with<'w>(self, value: &'w Value) -> Field<'w, 'p> {
        Field { value, ..self }
    }

    /// The field of this name.
    pub(crate) fn child<'b>(&'b self, name: &'b str) -> Field<'v, 'b> {
        Field { value: &self.value[name], path: self.path.child(name), errors: self.errors }
    }

    /// The field of this name, if it is set.
    pub(crate) fn get<'b>(&'b self, name: &'b str) -> Option<Field<'v, 'b>> {
        Some(Field { value: self.value.get(name)?, ..self.child(name) })
    }

    /// The entry of a map.
    pub(crate) fn key<'b>(&'b self, key: &'b str) -> Field<'v, 'b> {
        Field { value: &self.value[key], path: self.path.key(key), errors: self.errors }
    }

    /// The entries of a map.
    pub(crate) fn entries<'b>(&'b self) -> impl Iterator<Item = (&'v str, Field<'v, 'b>)>
    where
        'v: 'b,
    {
        map(self.value).map(|(key, _)| (key.as_str(), self.key(key)))
    }

    /// An element of the list of this name.
    pub(crate) fn item<'b>(&'b self, name: &'b str, index: usize) -> Field<'v, 'b> {
        Field { value: &self.value[name][index], path: self.path.item(name, index), errors: self.errors }
    }

    /// The elements of the list of this name.
    pub(crate) fn items<'b>(
        &'b self,
        name: &'b str,
    ) -> impl Iterator<Item = Field<'v, 'b>> + use<'b, 'v, 'p> {
        (0..list(self.value, name).len()).map(move |index| self.item(name, index))
    }

    /// The elements of this list.
    pub(crate) fn elements<'b>(&'b self) -> impl Iterator<Item = Field<'v, 'b>> + use<'b, 'v, 'p> {
        let list = self.value.as_array().map_or(&[][..], Vec::as_slice).iter().enumerate();
        list.map(|(index, value)| Field { value, path: self.path.index(index), errors: self.errors })
    }

    /// The value as a string; empty if it is missing.
    pub(crate) fn text(&self) -> &'v str {
        self.value.as_str().unwrap_or_default()
    }

    /// The value as an integer; 0 if it is missing.
    pub(crate) fn number(&self) -> i64 {
        self.value.as_i64().unwrap_or_default()
    }

    fn add(&self, kind: FieldErrorKind, value: String, detail: impl Into<String>) {
        let mut errors = self.errors.take();
        errors.push_with(|| FieldError::new(&self.path, kind, value, detail));
        self.errors.set(errors);
    }

    /// The number of errors of the object.
    pub(crate) fn error_count(&self) -> usize {
        let errors = self.errors.take();
        let count = errors.len();
        self.errors.set(errors);
        count
    }

    /// The value is missing.
    pub(crate) fn required(&self, detail: impl Into<String>) {
        self.add(FieldErrorKind::Required, String::new(), detail);
    }

    /// The field must not be set here.
    pub(crate) fn forbidden(&self, detail: impl Into<String>) {
        self.add(FieldErrorKind::Forbidden, String::new(), detail);
    }

    /// The value breaks a rule. A missing value is printed as an empty string.
    pub(crate) fn invalid(&self, detail: impl Into<String>) {
        let printed = if self.value.is_null() { quoted("") } else { printed(self.value) };
        self.invalid_printed(printed, detail);
    }

    /// The value breaks a rule. A missing value is printed as null.
    pub(crate) fn invalid_json(&self, detail: impl Into<String>) {
        self.invalid_printed(printed(self.value), detail);
    }

    /// This string breaks a rule.
    pub(crate) fn invalid_text(&self, value: &str, detail: impl Into<String>) {
        self.invalid_printed(quoted(value), detail);
    }

    /// This number breaks a rule.
    pub(crate) fn invalid_number(&self, value: i64, detail: impl Into<String>) {
        self.invalid_printed(value.to_string(), detail);
    }

    /// The value, which Kubernetes prints in a special form, breaks a rule.
    pub(crate) fn invalid_printed(&self, printed: String, detail: impl Into<String>) {
        self.add(FieldErrorKind::Invalid, printed, detail);
    }

    /// The value is none of those supported, which are in the order of printing.
    pub(crate) fn not_supported(&self, supported: &[&str]) {
        let list: Vec<String> = supported.iter().map(|value| quoted(value)).collect();
        let detail = format!("supported values: {}", list.join(", "));
        self.add(FieldErrorKind::NotSupported, quoted(self.text()), detail);
    }

    /// The value occurs twice.
    pub(crate) fn duplicate(&self) {
        self.duplicate_of(self.text());
    }

    /// What this text stands for occurs twice.
    pub(crate) fn duplicate_of(&self, value: &str) {
        self.add(FieldErrorKind::Duplicate, quoted(value), "");
    }

    /// This number, or another value that Kubernetes prints as JSON, occurs twice.
    pub(crate) fn duplicate_json(&self, value: &Value) {
        self.add(FieldErrorKind::Duplicate, printed(value), "");
    }

    /// The value refers to something that does not exist.
    pub(crate) fn not_found(&self) {
        self.add(FieldErrorKind::NotFound, quoted(self.text()), "");
    }

    /// The value has more bytes than `limit`.
    pub(crate) fn too_long(&self, limit: usize) {
        self.add(FieldErrorKind::TooLong, String::new(), format!("may not be more than {limit} bytes"));
    }

    /// The list has `count` items, more than `limit`.
    pub(crate) fn too_many(&self, count: usize, limit: usize) {
        self.add(FieldErrorKind::TooMany, count.to_string(), format!("must have at most {limit} items"));
    }

    /// Checks that the string is not empty.
    pub(crate) fn require(&self) {
        if self.text().is_empty() {
            self.required("");
        }
    }

    /// Adds an error for each detail that the rule returns; returns whether there is none.
    pub(crate) fn check(&self, rule: impl Fn(&str) -> Vec<String>) -> bool {
        self.check_text(self.text(), rule)
    }

    /// Applies the rule to another text that this field stands for.
    pub(crate) fn check_text(&self, text: &str, rule: impl Fn(&str) -> Vec<String>) -> bool {
        let details = rule(text);
        let is_valid = details.is_empty();
        details.into_iter().for_each(|detail| self.invalid_text(text, detail));
        is_valid
    }

    /// Checks that the string exists and follows the rule.
    pub(crate) fn check_required(&self, rule: impl Fn(&str) -> Vec<String>) {
        self.require();
        self.check_optional(rule);
    }

    /// Checks that the string follows the rule if it exists.
    pub(crate) fn check_optional(&self, rule: impl Fn(&str) -> Vec<String>) {
        if !self.text().is_empty() {
            self.check(rule);
        }
    }

    /// Checks that the value is one of the supported values, which are in the order of printing.
    pub(crate) fn supported(&self, values: &[&str]) {
        if !values.contains(&self.text()) {
            self.not_supported(values);
        }
    }

    /// Checks that the value exists and is one of the supported values.
    pub(crate) fn one_of(&self, values: &[&str]) {
        if self.text().is_empty() {
            self.required("");
        } else {
            self.supported(values);
        }
    }

    /// Checks that no earlier field has the value.
    pub(crate) fn unique(&self, known: &mut SortedSet<&'v str>) {
        if !known.insert(self.text()) {
            self.duplicate();
        }
    }

    /// Checks that a number is not negative.
    pub(crate) fn not_negative(&self) {
        if self.number() < 0 {
            self.invalid("must be greater than or equal to 0");
        }
    }

    /// Checks that a number is in this range, if it is set.
    pub(crate) fn range(&self, low: i64, high: i64) {
        if let Some(error) = self.value.as_i64().and_then(|value| rules::range(value, low, high)) {
            self.invalid(error);
        }
    }

    /// Checks the id of a user or group.
    pub(crate) fn id(&self) {
        self.range(0, i64::from(i32::MAX));
    }

    /// Checks that a path is relative and does not contain `..`.
    pub(crate) fn relative_path(&self) {
        if self.text().starts_with('/') {
            self.invalid("must be a relative path");
        }
        self.no_back_steps();
    }

    /// Checks that no component of the path is `..`.
    pub(crate) fn no_back_steps(&self) {
        if self.text().split('/').any(|part| part == "..") {
            self.invalid("must not contain '..'");
        }
    }

    /// Checks labels, or another map with the same rules.
    pub(crate) fn labels(&self) {
        for (key, value) in map(self.value) {
            self.check_text(key, rules::qualified_name);
            self.check_text(value.as_str().unwrap_or_default(), rules::label_value);
        }
    }

    /// Checks a label selector (`ValidateLabelSelector`).
    pub(crate) fn label_selector(&self) {
        self.child("matchLabels").labels();
        for expression in self.items("matchExpressions") {
            expression.selector_operator();
            expression.child("key").check(rules::qualified_name);
            expression.label_values();
        }
    }

    /// Checks the operator of a requirement on labels, and whether it has values.
    pub(crate) fn selector_operator(&self) {
        self.operator_has_values();
        let operator = self.child("operator");
        if !["In", "NotIn", "Exists", "DoesNotExist"].contains(&operator.text()) {
            operator.invalid("not a valid selector operator");
        }
    }

    /// Checks that an operator of labels has values if it needs some, and none if it does not.
    pub(crate) fn operator_has_values(&self) {
        let values = self.child("values");
        match (text(self.value, "operator"), list(self.value, "values").is_empty()) {
            ("In" | "NotIn", true) => values.required("must be specified when `operator` is 'In' or 'NotIn'"),
            ("Exists" | "DoesNotExist", false) => {
                values.forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
            }
            _ => {}
        }
    }

    /// Checks the values of a requirement on labels.
    pub(crate) fn label_values(&self) {
        for value in self.items("values") {
            value.check(rules::label_value);
        }
    }
}

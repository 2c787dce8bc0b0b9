//! On which node a pod may run: its requirements on the node, and the taints that it tolerates.

use crate::sorted::SortedMap;

use serde::{Deserialize, Serialize};

/// `nodeSelector`, the required `nodeAffinity`, `tolerations` and `os`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// `nodeSelector`.
    pub node_selector: SortedMap<String, String>,
    /// `nodeSelectorTerms` of the required node affinity; `None` without one.
    pub node_affinity: Option<Vec<NodeSelectorTerm>>,
    /// `tolerations`.
    pub tolerations: Vec<Toleration>,
    /// `os.name`; empty if it was not given.
    pub os: String,
}

/// One of `nodeSelectorTerms`: a node matches if all requirements of one term match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSelectorTerm {
    /// `matchExpressions`, which apply to the node's labels.
    pub match_expressions: Vec<NodeSelectorRequirement>,
    /// `matchFields`, which apply to the node's `metadata.name`, the only supported field.
    pub match_fields: Vec<NodeSelectorRequirement>,
}

/// One of `matchExpressions` or `matchFields`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSelectorRequirement {
    /// `key`.
    pub key: String,
    /// `operator`.
    pub operator: NodeSelectorOperator,
    /// `values`.
    pub values: Vec<String>,
}

/// `operator` of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the operator of that name")]
pub enum NodeSelectorOperator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
}

/// One of `tolerations`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toleration {
    /// `key`; empty for all keys.
    pub key: String,
    /// Whether `operator` is `Exists`, which matches any value.
    pub exists: bool,
    /// `value`.
    pub value: String,
    /// `effect`; empty for all effects.
    pub effect: String,
}

/// One of a node's `taints`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taint {
    /// `key`.
    pub key: String,
    /// `value`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// `effect`.
    pub effect: String,
}

impl Placement {
    /// Whether the placement selects a node with this name and these labels.
    pub fn matches(&self, name: &str, labels: &SortedMap<String, String>) -> bool {
        let selected = self.node_selector.iter().all(|(key, value)| labels.get(key) == Some(value));
        // An empty term matches no node.
        let is_empty =
            |term: &NodeSelectorTerm| term.match_expressions.is_empty() && term.match_fields.is_empty();
        let matches = |term: &NodeSelectorTerm| {
            term.match_expressions
                .iter()
                .all(|asked| asked.matches(labels.get(&asked.key).map(String::as_str)))
                && term.match_fields.iter().all(|asked| asked.matches(Some(name)))
        };
        selected
            && self
                .node_affinity
                .as_ref()
                .is_none_or(|terms| terms.iter().any(|term| !is_empty(term) && matches(term)))
    }

    /// What a node with these labels lacks, which the placement does not select.
    pub(crate) fn unmatched(&self, labels: &SortedMap<String, String>) -> String {
        let mut selected = self.node_selector.iter();
        let Some((key, value)) = selected.find(|&(key, value)| labels.get(key) != Some(value)) else {
            return "the node has other labels or another name than nodeAffinity requires".to_owned();
        };
        let has = labels.get(key).map_or("no such label".to_owned(), |has| format!("{key}={has}"));
        format!("nodeSelector requires {key}={value}, and the node has {has}")
    }

    /// Whether the placement tolerates a taint.
    pub(crate) fn tolerates(&self, taint: &Taint) -> bool {
        self.tolerations.iter().any(|toleration| {
            (toleration.effect.is_empty() || toleration.effect == taint.effect)
                && (toleration.key.is_empty() || toleration.key == taint.key)
                && (toleration.exists || toleration.value == taint.value)
        })
    }
}

impl NodeSelectorRequirement {
    /// Whether the requirement matches a label or field with this value; `None` if the node does not have it.
    fn matches(&self, value: Option<&str>) -> bool {
        let is_in = || value.is_some_and(|value| self.values.iter().any(|asked| asked == value));
        let numbers = || {
            let [asked] = &self.values[..] else { return None };
            Some((value?.parse::<i64>().ok()?, asked.parse::<i64>().ok()?))
        };
        match self.operator {
            NodeSelectorOperator::In => is_in(),
            NodeSelectorOperator::NotIn => !is_in(),
            NodeSelectorOperator::Exists => value.is_some(),
            NodeSelectorOperator::DoesNotExist => value.is_none(),
            NodeSelectorOperator::Gt => numbers().is_some_and(|(value, asked)| value > asked),
            NodeSelectorOperator::Lt => numbers().is_some_and(|(value, asked)| value < asked),
        }
    }
}

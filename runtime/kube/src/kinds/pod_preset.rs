//! PodPresets, for which kubectl has neither columns nor a description.

use super::generic;
use super::strategy::{Describe, Strategy};
use crate::manifest::preset::READER;

pub(super) static STRATEGY: Strategy = Strategy {
    columns: generic::COLUMNS,
    cells: generic::cells,
    row_conditions: generic::no_conditions,
    describe: Describe::WithEvents(generic::describe),
    reader: Some(READER),
    protobuf: &[],
};

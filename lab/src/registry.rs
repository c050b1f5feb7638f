//! The list of all experiments.

use crate::experiment::{
    Experiment, applications, budget, consolidate, descheduled, failover, idle_sessions, incast,
    internet, long_fat, mesh_peers, neighbours, observe_cost, pied_piper, relay_peers, routes,
    snoop_hazards, snoop_soak, soak, tune_cost, verdicts,
};

/// Every experiment.
pub const ALL: &[Experiment] = &[
    pied_piper::EXPERIMENT,
    internet::EXPERIMENT,
    neighbours::EXPERIMENT,
    consolidate::EXPERIMENT,
    applications::EXPERIMENT,
    idle_sessions::EXPERIMENT,
    observe_cost::EXPERIMENT,
    tune_cost::EXPERIMENT,
    verdicts::EXPERIMENT,
    verdicts::gains::EXPERIMENT,
    long_fat::EXPERIMENT,
    budget::EXPERIMENT,
    incast::EXPERIMENT,
    descheduled::EXPERIMENT,
    relay_peers::EXPERIMENT,
    mesh_peers::EXPERIMENT,
    failover::EXPERIMENT,
    routes::EXPERIMENT,
    soak::EXPERIMENT,
    snoop_soak::EXPERIMENT,
    snoop_hazards::EXPERIMENT,
];

/// Returns the papers' figures in the outcomes of the experiments that the report's page opens with.
#[cfg(test)]
pub(crate) fn paper(experiment: &str) -> serde_json::Map<String, serde_json::Value> {
    match experiment {
        "consolidate" => consolidate::paper(),
        "incast" => incast::paper(),
        "internet" => internet::paper(),
        "long-fat" => long_fat::paper(),
        "pied-piper" => pied_piper::paper(),
        _ => serde_json::Map::new(),
    }
}

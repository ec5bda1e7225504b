//! The planner for Python: what maturin makes the wheel of.
//!
//! A thin edge over [`pipeplan_core::api`]: texts go in, texts of files or JSON come out, and the Python package beside it
//! makes objects of them. The interpreter is free while the planner works; Ctrl-C ends a search.

mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pipeplan_core::advise::tune::Tuner;
use pipeplan_core::api::{self, Options, Refusal};
use pipeplan_core::base::json;
use pipeplan_core::formats::training_run::Given;
use pipeplan_core::plan::Plan;
use pipeplan_core::search::Flow;
use pipeplan_core::spec;
use pipeplan_exact::{Budget, NoProof};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use watch::Watch;

/// A refusal as `pipeplan.SpecError`.
fn raised(py: Python<'_>, refusal: &Refusal) -> PyErr {
    let error = || {
        let class = py.import("pipeplan._errors")?.getattr("_refusal")?;
        class.call1((refusal.to_value().to_string(),))
    };
    error().map_or_else(|error| error, PyErr::from_value)
}

/// Does `work` while other threads of Python run.
fn freely<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T, Refusal> + Send) -> PyResult<T> {
    py.detach(work).map_err(|refusal| raised(py, &refusal))
}

/// As [`freely`], for a search that `tell` hears of and that Ctrl-C ends.
fn watched<T: Send>(
    py: Python<'_>,
    tell: Option<Py<PyAny>>,
    work: impl FnOnce(&mut Watch) -> Result<T, Refusal> + Send,
) -> PyResult<T> {
    let mut watch = Watch::new(tell);
    let found = py.detach(|| work(&mut watch));
    watch.end()?;
    found.map_err(|refusal| raised(py, &refusal))
}

/// Options in JSON.
fn options(text: &str, taken: &[&str]) -> Result<Options, Refusal> {
    Options::read(&json::parse(text)?, taken, &[])
}

#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    /// TOML or JSON as JSON.
    #[pyfunction]
    fn parse(py: Python<'_>, text: &str) -> PyResult<String> {
        freely(py, || Ok(spec::parse(text)?.to_string()))
    }

    #[pyfunction]
    fn is_link(text: &str) -> bool {
        spec::link::looks_like_one(text)
    }

    /// The JSON Schema of a plan file, and of the spec within.
    #[pyfunction]
    fn schema() -> &'static str {
        pipeplan_core::plan::SCHEMA
    }

    #[pyfunction]
    fn read_spec(py: Python<'_>, spec: &str) -> PyResult<String> {
        freely(py, || Ok(api::spec(spec)?.to_value().to_string()))
    }

    #[pyfunction]
    fn link(py: Python<'_>, spec: &str, page: &str) -> PyResult<String> {
        freely(py, || Ok(api::link(&api::spec(spec)?, page)))
    }

    #[pyfunction]
    fn plan(py: Python<'_>, spec: &str, given: &str, tell: Option<Py<PyAny>>) -> PyResult<String> {
        watched(py, tell, |watch| {
            let options = options(given, &["schedule", "effort", "order", "profile"])?;
            let spec = options.apply(api::spec(spec)?)?;
            Ok(api::plan(&spec, &options, &mut |progress| watch.see(progress))?.to_json())
        })
    }

    #[pyfunction]
    fn compare(py: Python<'_>, spec: &str, given: &str, tell: Option<Py<PyAny>>) -> PyResult<String> {
        watched(py, tell, |watch| {
            let options = options(given, &["effort", "order", "profile"])?;
            let spec = options.apply(api::spec(spec)?)?;
            Ok(api::compare(&spec, &options, &mut |progress| watch.see(progress)).to_string())
        })
    }

    #[pyfunction]
    fn memory(py: Python<'_>, spec: &str, given: &str, tell: Option<Py<PyAny>>) -> PyResult<String> {
        watched(py, tell, |watch| {
            let options = options(given, &["schedule", "effort", "profile"])?;
            let spec = options.apply(api::spec(spec)?)?;
            Ok(api::memory(&spec, &options, &mut |progress| watch.see(progress))?.to_string())
        })
    }

    #[pyfunction]
    fn tune(py: Python<'_>, spec: &str, given: &str, tell: Option<Py<PyAny>>) -> PyResult<String> {
        watched(py, tell, |watch| {
            let options = options(given, &["devices", "keep", "schedules", "most", "effort", "profile"])?;
            let spec = options.apply(api::spec(spec)?)?;
            let mut tuner = Tuner::new(&spec, &options.question)?;
            let mut complete = false;
            while !complete && watch.flow() == Flow::Continue {
                complete = !tuner.step(options.effort, &mut |progress| watch.see(progress));
            }
            Ok(tuner.to_value(complete).to_string())
        })
    }

    #[pyfunction]
    fn bound(py: Python<'_>, spec: &str) -> PyResult<String> {
        freely(py, || Ok(api::bound(&api::spec(spec)?)?.to_string()))
    }

    #[pyfunction]
    fn sensitivity(py: Python<'_>, plan: &str, given: &str, tell: Option<Py<PyAny>>) -> PyResult<String> {
        watched(py, tell, |watch| {
            let options = options(given, &["permille", "anew", "effort"])?;
            Ok(api::sensitivity(plan, &options, &mut |progress| watch.see(progress))?.to_string())
        })
    }

    #[pyfunction]
    fn check(py: Python<'_>, plan: &str) -> PyResult<String> {
        freely(py, || Ok(api::check(plan).to_string()))
    }

    /// What was proved, as the text of a proof file of the plan that was given or of the better one; and the text of that.
    #[pyfunction]
    fn prove(
        py: Python<'_>,
        plan: &str,
        seconds: f64,
        tell: Option<Py<PyAny>>,
    ) -> PyResult<(String, Option<String>)> {
        watched(py, tell, |watch| {
            if !(seconds > 0.0 && seconds <= 86_400.0) {
                let found = seconds.to_string();
                return Err(Refusal::of_field("seconds", &found, "a number above 0 and up to 86400"));
            }
            let plan = Plan::from_json(plan)?;
            let stop = Arc::new(AtomicBool::new(false));
            let budget = Budget { stop: Some(Arc::clone(&stop)), ..Budget::seconds(seconds) };
            let proof = pipeplan_exact::prove(&plan, &budget, &mut |watched| {
                if watch.tell(watched.steps, watched.value_ns, watched.lower_ns) == Flow::Stop {
                    stop.store(true, Ordering::Relaxed);
                }
            });
            let proof = proof.map_err(|error| match error {
                NoProof::Refused(refused) => Refusal::said(refused),
                NoProof::Found(found) => found.into(),
            })?;
            let of = proof.better.as_ref().unwrap_or(&plan);
            Ok((proof.to_value(of).to_string(), proof.better.as_ref().map(Plan::to_json)))
        })
    }

    #[pyfunction]
    fn import_run(
        py: Python<'_>,
        text: &str,
        device: &str,
        devices: Option<u64>,
        variables: BTreeMap<String, String>,
        command: Option<usize>,
        tell: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        watched(py, tell, |watch| {
            let given = Given { variables, command, ..Given::default() };
            Ok(api::import_run(text, device, devices, &given, &mut |progress| watch.see(progress))?.to_string())
        })
    }

    #[pyfunction]
    fn trace(py: Python<'_>, plan: &str, profiles: Vec<(String, String)>) -> PyResult<String> {
        freely(py, || api::trace(plan, profiles.into_iter().map(Ok)))
    }

    #[pyfunction]
    fn calibrate(py: Python<'_>, plan: &str, trace: &str) -> PyResult<String> {
        freely(py, || Ok(api::calibrate(plan, trace)?.to_string()))
    }

    #[pyfunction]
    fn export(py: Python<'_>, text: &str, format: &str) -> PyResult<String> {
        freely(py, || api::export(text, format))
    }

    #[pyfunction]
    fn export_bytes<'py>(py: Python<'py>, text: &str, format: &str) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &freely(py, || api::export_bytes(text, format))?))
    }

    #[pyfunction]
    fn schedules() -> String {
        api::schedules().to_string()
    }

    #[pyfunction]
    fn details(py: Python<'_>, plan: &str) -> PyResult<String> {
        freely(py, || Ok(api::details(plan)?.to_string()))
    }
}

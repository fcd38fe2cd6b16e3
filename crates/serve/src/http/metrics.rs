//! `GET /metrics`: counters and histograms in Prometheus's text format. Each server has its own registry.

use std::sync::Arc;
use std::time::Duration;

use ::metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram, with_local_recorder,
};
use axum::extract::State;
use axum::http::Method;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use super::App;
use super::problem::ProblemKind;
use crate::engine::{Refused, Timing};

const REQUESTS: &str = "vit_http_requests_total";
const REQUEST_SECONDS: &str = "vit_http_request_duration_seconds";
const IN_FLIGHT: &str = "vit_http_requests_in_flight";
const IMAGES: &str = "vit_images_total";
const REFUSED: &str = "vit_refused_requests_total";
const DECODE_SECONDS: &str = "vit_image_decode_seconds";
const QUEUE_SECONDS: &str = "vit_image_queue_seconds";
const COMPUTE_SECONDS: &str = "vit_image_compute_seconds";
const EXPLAIN_SECONDS: &str = "vit_image_explain_seconds";
const BATCH: &str = "vit_image_batch_size";
const BATCHES: &str = "vit_batches_total";
const WAITING: &str = "vit_queue_images";
const MODEL_UP: &str = "vit_model_up";
const HELD: &str = "vit_body_memory_bytes";
const RESIDENT: &str = "process_resident_memory_bytes";
const BUILD: &str = "vit_build_info";

/// Histograms collect samples until they are drained into buckets.
const UPKEEP: Duration = Duration::from_secs(5);
const SECONDS: [f64; 18] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
const BATCH_SIZES: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// The metrics of one server.
pub struct ServerMetrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

impl ServerMetrics {
    pub fn new() -> Self {
        let mut builder = PrometheusBuilder::new();
        for name in [REQUEST_SECONDS, DECODE_SECONDS, QUEUE_SECONDS, COMPUTE_SECONDS, EXPLAIN_SECONDS] {
            builder = with_buckets(builder, name, &SECONDS);
        }
        let recorder = with_buckets(builder, BATCH, &BATCH_SIZES).build_recorder();
        with_local_recorder(&recorder, || {
            describe_counter!(REQUESTS, "Requests by route, method and status; 499 is a client that has gone.");
            describe_histogram!(REQUEST_SECONDS, Unit::Seconds, "Time from a request's header to its answer.");
            describe_gauge!(IN_FLIGHT, "Requests that are being answered.");
            describe_counter!(IMAGES, "Images by model and outcome.");
            describe_counter!(REFUSED, "Requests that were not admitted, by model and reason.");
            describe_histogram!(DECODE_SECONDS, Unit::Seconds, "Waiting for a decoder, decoding and preprocessing.");
            describe_histogram!(QUEUE_SECONDS, Unit::Seconds, "From decoded to the start of the batch.");
            describe_histogram!(COMPUTE_SECONDS, Unit::Seconds, "The run of an image's batch.");
            describe_histogram!(EXPLAIN_SECONDS, Unit::Seconds, "The computation of an image's maps.");
            describe_histogram!(BATCH, "Images in the batch of each image.");
            describe_counter!(BATCHES, "Runs of a model.");
            describe_gauge!(WAITING, "Images that wait, being decoded included.");
            describe_gauge!(MODEL_UP, "1 if a model has a working device, else 0.");
            describe_gauge!(HELD, Unit::Bytes, "Bytes of all bodies in memory.");
            describe_gauge!(RESIDENT, Unit::Bytes, "Resident memory of the process.");
            describe_gauge!(BUILD, "1, with the version as a label.");
            gauge!(BUILD, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
            gauge!(IN_FLIGHT).set(0.0);
        });
        Self { handle: recorder.handle(), recorder }
    }

    fn record(&self, record: impl FnOnce()) {
        with_local_recorder(&self.recorder, record);
    }

    pub fn requests_in_flight(&self, change: f64) {
        self.record(|| gauge!(IN_FLIGHT).increment(change));
    }

    pub fn request(&self, route: &str, method: &Method, status: u16, time: Duration) {
        let known = [Method::GET, Method::HEAD, Method::POST, Method::OPTIONS].contains(method);
        let method = if known { method.as_str() } else { "other" }.to_string();
        self.record(|| {
            histogram!(REQUEST_SECONDS, "route" => route.to_string()).record(time);
            counter!(REQUESTS, "route" => route.to_string(), "method" => method, "status" => status.to_string())
                .increment(1);
        });
    }

    /// An image that went through the queue.
    pub fn image(&self, model: &str, outcome: Result<Timing, ProblemKind>) {
        self.record(|| {
            count_image(model, outcome.map(|_| "answered"));
            if let Ok(timing) = outcome {
                let label = || model.to_string();
                histogram!(DECODE_SECONDS, "model" => label()).record(timing.decode);
                histogram!(QUEUE_SECONDS, "model" => label()).record(timing.queue);
                histogram!(COMPUTE_SECONDS, "model" => label()).record(timing.compute);
                histogram!(BATCH, "model" => label()).record(timing.batch as f64);
            }
        });
    }

    pub fn explained(&self, model: &str, outcome: Result<Timing, ProblemKind>) {
        self.record(|| {
            count_image(model, outcome.map(|_| "explained"));
            if let Ok(timing) = outcome {
                histogram!(EXPLAIN_SECONDS, "model" => model.to_string()).record(timing.compute);
            }
        });
    }

    pub fn refused(&self, model: &str, kind: ProblemKind) {
        self.record(|| counter!(REFUSED, "model" => model.to_string(), "reason" => kind.slug()).increment(1));
    }

    /// Sorts collected samples into buckets from time to time; never ends.
    pub async fn upkeep(&self) {
        loop {
            tokio::time::sleep(UPKEEP).await;
            self.handle.run_upkeep();
        }
    }

    fn render(&self, app: &App) -> String {
        self.record(|| {
            for model in app.engine.models() {
                let (name, statistics) = (model.card().name.clone(), model.statistics());
                let up = !matches!(model.has_room(1), Err(Refused::Lost(_)));
                gauge!(WAITING, "model" => name.clone()).set(statistics.waiting as f64);
                counter!(BATCHES, "model" => name.clone()).absolute(statistics.batches);
                gauge!(MODEL_UP, "model" => name).set(f64::from(u8::from(up)));
            }
            gauge!(HELD).set(app.body_limits.held.held() as f64);
            if let Some(bytes) = vit_system::host::resident() {
                gauge!(RESIDENT).set(bytes as f64);
            }
        });
        self.handle.render()
    }
}

fn with_buckets(builder: PrometheusBuilder, name: &str, buckets: &[f64]) -> PrometheusBuilder {
    builder.set_buckets_for_metric(Matcher::Full(name.into()), buckets).expect("there are buckets")
}

fn count_image(model: &str, outcome: Result<&'static str, ProblemKind>) {
    let outcome = outcome.unwrap_or_else(ProblemKind::slug);
    counter!(IMAGES, "model" => model.to_string(), "outcome" => outcome).increment(1);
}

/// Metrics in Prometheus's text format
#[utoipa::path(
    get, path = "/metrics", tag = "Health",
    responses((status = 200, description = "All metrics", body = String, content_type = "text/plain")),
)]
pub async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics.render(&app))
}

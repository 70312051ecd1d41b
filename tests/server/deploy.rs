//! What is in `deploy/`: every file parses, and names paths, flags and metrics that the server has.

use super::{
    host::Host,
    process::{MODEL, Process},
};
use serde::Deserialize;
use serde_json::Value;
use std::{path::Path, process::Command};

fn text(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name)).unwrap()
}

/// The objects of a manifest.
fn objects(name: &str) -> Vec<Value> {
    let text = text(name);
    let documents = serde_yaml_ng::Deserializer::from_str(&text);
    documents.map(|document| Value::deserialize(document).unwrap_or_else(|error| panic!("{name}: {error}"))).collect()
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

/// Variables of the environment are flags.
fn is_flag(variable: &str) -> bool {
    let help = Command::new(env!("CARGO_BIN_EXE_kvas")).args(["serve", "--help"]).output().unwrap();
    let flag = format!("--{} ", variable.strip_prefix("KVAS_").unwrap().to_lowercase().replace('_', "-"));
    String::from_utf8(help.stdout).unwrap().contains(&flag)
}

#[test]
fn replicas_are_probed_and_scraped_where_the_server_answers() {
    let objects = objects("kubernetes/kvas.yaml");
    let pod = &of_kind(&objects, "Deployment")["spec"]["template"];
    let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
    assert_eq!(spec["enableServiceLinks"], false, "KVAS_PORT of a service would be taken for --port");
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    let host = Host::shared();
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        let path = container[probe]["httpGet"]["path"].as_str().unwrap();
        assert_eq!(host.get(path).status, 200, "{probe}");
    }
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(host.get(annotations["prometheus.io/path"].as_str().unwrap()).status, 200);
    assert_eq!(annotations["prometheus.io/port"], container["ports"][0]["containerPort"].to_string());
    for variable in container["env"].as_array().unwrap() {
        assert!(is_flag(variable["name"].as_str().unwrap()), "{variable}");
    }
    for kind in ["Service", "PodDisruptionBudget"] {
        let selector = &of_kind(&objects, kind)["spec"]["selector"];
        let labels = selector.get("matchLabels").unwrap_or(selector);
        assert_eq!(labels["app.kubernetes.io/name"], pod["metadata"]["labels"]["app.kubernetes.io/name"], "{kind}");
    }
}

#[test]
fn the_gateway_reads_metrics_that_are_there() {
    let objects = objects("kubernetes/gateway.yaml");
    let map = &of_kind(&objects, "ConfigMap")["data"];
    let config: Value = serde_yaml_ng::from_str(map["picker.yaml"].as_str().unwrap()).unwrap();
    let plugins = config["plugins"].as_array().unwrap();
    let parameters = |kind: &str| &plugins.iter().find(|plugin| plugin["type"] == kind).unwrap()["parameters"];
    let engine = &parameters("core-metrics-extractor")["engineConfigs"][0];
    let host = Host::shared();
    host.post("/v1/completions", &serde_json::json!({"prompt": "Hi", "max_tokens": 1})).ok();
    let metrics = host.get(parameters("metrics-data-source")["path"].as_str().unwrap()).text();
    let names: Vec<&str> = engine.as_object().unwrap().iter().skip(1).map(|(_, name)| name.as_str().unwrap()).collect();
    assert_eq!(names.len(), 3);
    for name in names {
        let gauge = format!("# TYPE {name} gauge\n");
        assert!(metrics.contains(&gauge) && metrics.contains(&format!("\n{name}{{")), "{name}: {metrics}");
    }
    let known = |name: &Value| plugins.iter().any(|plugin| plugin["type"] == *name);
    let profile = config["schedulingProfiles"][0]["plugins"].as_array().unwrap();
    assert!(profile.iter().all(|plugin| known(&plugin["pluginRef"])), "{profile:?}");
    // The pool is that of the deployment.
    let deployed = self::objects("kubernetes/kvas.yaml");
    let pod = &of_kind(&deployed, "Deployment")["spec"]["template"];
    let pool = &of_kind(&objects, "InferencePool")["spec"];
    let name = "app.kubernetes.io/name";
    assert_eq!(pool["selector"]["matchLabels"][name], pod["metadata"]["labels"][name]);
    assert_eq!(pool["targetPorts"][0]["number"], pod["spec"]["containers"][0]["ports"][0]["containerPort"]);
    assert_eq!(pod["metadata"]["labels"]["llm-d.ai/engine-type"], engine["name"]);
    let service = of_kind(&objects, "Service");
    assert_eq!(pool["endpointPickerRef"]["name"], service["metadata"]["name"]);
    assert_eq!(pool["endpointPickerRef"]["port"]["number"], service["spec"]["ports"][0]["port"]);
}

/// What stands behind an instruction of the container file.
fn instruction(name: &str) -> String {
    let text = text("Containerfile");
    let mut found = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.next_back().unwrap_or_else(|| panic!("no {name}")).to_string()
}

/// What a container would run, run here: command and environment of the image, with a model and a free port.
#[test]
fn the_image_starts_answers_and_stops() {
    let list = |name: &str| serde_json::from_str::<Vec<String>>(&instruction(name)).unwrap();
    assert_eq!(list("ENTRYPOINT"), ["kvas"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvas"));
    command.env_clear().args(list("CMD"));
    command.envs(instruction("ENV").split(' ').map(|pair| pair.split_once('=').unwrap()));
    command.envs([("KVAS_MODEL", MODEL), ("KVAS_PORT", "0"), ("KVAS_CTX_SIZE", "256"), ("KVAS_DEVICE", "cpu")]);
    let mut server = Process::of(command);
    let check = instruction("HEALTHCHECK");
    let path = check.split("http://127.0.0.1:$KVAS_PORT").nth(1).unwrap().split(' ').next().unwrap();
    assert_eq!(server.get(path).ok()["status"], "ok");
    let body = serde_json::json!({"prompt": "Hi", "max_tokens": 2});
    server.post("/v1/completions", &body).rest().ok();
    let log = server.said();
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(lines.iter().any(|line| line["fields"]["message"] == "loaded"), "a log in JSON: {log}");
    server.signal(instruction("STOPSIGNAL").strip_prefix("SIG").unwrap());
    assert_eq!(server.ended(), Some(0));
}

/// What is built, fetched or secret stays out of the image's sources.
#[test]
fn the_image_is_built_from_sources_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let ignored = std::fs::read_to_string(root.join(".containerignore")).unwrap();
    assert_eq!(
        ignored,
        std::fs::read_to_string(root.join(".dockerignore")).unwrap(),
        "podman reads one, docker the other"
    );
    for name in ["target", "fuzz", ".git", "web/node_modules"] {
        assert!(ignored.lines().any(|line| line == name), "{name}");
    }
    // What the build copies in is all it needs.
    assert!(instruction("COPY").starts_with("--from=build /source/target/release/kvas "));
}

#[test]
fn the_image_holds_no_secret_and_runs_without_root() {
    let text = text("Containerfile");
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let instruction = |name: &str| lines.iter().filter(move |line| line.starts_with(name)).copied().collect::<Vec<_>>();
    assert_eq!(instruction("FROM ").len(), 2);
    assert_eq!(instruction("USER "), ["USER 10001"]);
    assert!(instruction("HEALTHCHECK ")[0].contains("/health "));
    let variables: Vec<&str> = instruction("ENV ").iter().flat_map(|line| line.split(' ').skip(1)).collect();
    assert!(variables.len() >= 4);
    for variable in variables {
        let name = variable.split('=').next().unwrap();
        assert!(is_flag(name) && !name.contains("KEY"), "{variable}");
    }
}

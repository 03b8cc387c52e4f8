"""The benchmark command: it measures, says what it measured, and notices wrong results. No figure is asserted."""

import json

import pytest
from tiny_run import invoke

from pipeline import bench


def test_measures_and_reports(tmp_path):
    path = tmp_path / "bench.json"
    done = invoke(bench.main, "--models", "mobilenet_v2_035_64", "--rounds", 1, "--json", path)
    assert done.exit_code == 0, done.output
    report = json.loads(path.read_text())
    (model,) = report["models"]
    assert model["model"] == "mobilenet_v2_035_64" and model["equal_to_builtin_ref"]
    assert model["macs"] == 4_747_968 and model["weights"] == 394_848
    for ratio in ("probe_ratio_vs_xnnpack", "forward_ratio_vs_xnnpack", "forward_ratio_vs_builtin_ref"):
        assert model[ratio] > 0
    assert model["probe_ratio_vs_xnnpack"] == pytest.approx(model["probe_runner"] / model["probe_xnnpack"])
    assert all(rate > 0 for rate in model["forward"].values())
    if "amx" in report["peak_gmacs"] or "vnni" in report["peak_gmacs"]:
        assert 0 < model["share_of_peak"] < 1
    assert f"{model['probe_ratio_vs_xnnpack']:.1f}" in done.output


def test_unknown_model_is_a_sentence():
    done = invoke(bench.main, "--models", "vgg16")
    assert done.exit_code == 1
    assert "error: no model begins with vgg16: there are resnet18_w16_64" in done.output


def test_no_folder_for_the_json_is_a_sentence(tmp_path):
    done = invoke(bench.main, "--json", tmp_path / "missing" / "bench.json")
    assert done.exit_code == 1
    assert "error: the folder of" in done.output

"""``export --format perfetto`` is read by Perfetto's own schema, which its package on PyPI has.

What stands in the file is compared with the table of the same plan, ``--format csv``, and with the same events in JSON.
"""

from __future__ import annotations

import csv
import io
import json
import subprocess

import pytest

from conftest import EXAMPLES

perfetto_trace = pytest.importorskip(
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="Perfetto's package cannot be had from PyPI"
)
unknown_fields = pytest.importorskip("google.protobuf.unknown_fields")


class Events:
    """The slices, counters and arrows of a file, as a viewer of Perfetto's makes them of packets."""

    def __init__(self, data: bytes):
        trace = perfetto_trace.Trace()
        trace.ParseFromString(data)
        self.processes, self.tracks, self.slices, self.values = {}, {}, [], []
        names, categories, opened = {}, {}, {}
        for packet in trace.packet:
            expect_known(packet)
            assert packet.trusted_packet_sequence_id == 1
            if packet.HasField("track_descriptor"):
                track = packet.track_descriptor
                assert track.uuid not in self.tracks and track.uuid != 0
                assert not track.HasField("parent_uuid") or track.parent_uuid in self.tracks
                self.tracks[track.uuid] = track
                continue
            if packet.sequence_flags & perfetto_trace.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
                names, categories = {}, {}
                continue
            names.update({name.iid: name.name for name in packet.interned_data.event_names})
            categories.update({category.iid: category.name for category in packet.interned_data.event_categories})
            event, at = packet.track_event, packet.timestamp
            track = self.tracks[event.track_uuid]
            if event.type == event.TYPE_SLICE_BEGIN:
                assert event.track_uuid not in opened, "a slice begins before the one before it has ended"
                opened[event.track_uuid] = (names[event.name_iid], categories[event.category_iids[0]], at, event)
            elif event.type == event.TYPE_SLICE_END:
                name, category, start, begun = opened.pop(event.track_uuid)
                assert at >= start
                process = self.tracks[track.parent_uuid].process
                flows = (list(begun.flow_ids), list(begun.terminating_flow_ids))
                self.slices.append((process.process_name, name, category, start, at, flows))
            else:
                assert event.type == event.TYPE_COUNTER and track.counter.unit == track.counter.UNIT_SIZE_BYTES
                process = self.tracks[track.parent_uuid].process
                self.values.append((process.process_name, at, event.counter_value))
        assert not opened


def expect_known(message):
    """No field is one that the schema does not have: such a field would be passed over by every reader."""
    assert len(unknown_fields.UnknownFieldSet(message)) == 0, message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            repeated = hasattr(value, "append") or hasattr(value, "add")
            for one in value if repeated else [value]:
                expect_known(one)


@pytest.fixture
def exported(command, tmp_path):
    """The exports of a file in several formats."""

    def export(path: str, form: str) -> bytes:
        target = tmp_path / form
        command("export", path, "--format", form, "-o", str(target))
        return target.read_bytes()

    return export


def table(data: bytes):
    return list(csv.DictReader(io.StringIO(data.decode())))


@pytest.mark.parametrize("schedule", ["1f1b", "zb-v", "dualpipe"])
def test_a_plan_is_what_its_table_says(command, exported, tmp_path, schedule):
    plan = str(tmp_path / "plan.json")
    command("plan", str(EXAMPLES / "tiny-llama.toml"), "--schedule", schedule, "-o", plan)
    events = Events(exported(plan, "perfetto"))
    rows = table(exported(plan, "csv"))
    expected = sorted((f"{schedule}: rank {row['rank']}", row["what"], int(row["start_ns"]), int(row["end_ns"])) for row in rows)
    assert sorted((process, name, start, end) for process, name, _, start, end, _ in events.slices) == expected
    # Bytes are those of the same plan in JSON, which another test holds against the plan.
    chrome = json.loads(exported(plan, "chrome-trace"))["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in chrome if event["name"] == "process_name"}
    layers = {names[event["pid"]]: [event["args"]["labels"]] for event in chrome if event["name"] == "process_labels"}
    ranks = [track.process for track in events.tracks.values() if track.HasField("process")]
    assert {rank.process_name: list(rank.process_labels) for rank in ranks} == layers and len(layers) == 4
    assert layers[f"{schedule}: rank 0"][0].startswith("layers 0") and "embedding" in layers[f"{schedule}: rank 0"][0]
    values = [(names[event["pid"]], round(event["ts"] * 1000), event["args"]["bytes"]) for event in chrome if event["ph"] == "C"]
    assert sorted(events.values) == sorted(values) and values


def test_arrows_go_from_each_output_to_the_op_that_takes_it(command, exported, tmp_path):
    plan = str(tmp_path / "plan.json")
    command("plan", str(EXAMPLES / "two-ranks.toml"), "--schedule", "1f1b", "-o", plan)
    events = Events(exported(plan, "perfetto"))
    sent = {flow: slice for slice in events.slices for flow in slice[5][0]}
    received = {flow: slice for slice in events.slices for flow in slice[5][1]}
    assert sent.keys() == received.keys() and sent
    for flow, (process, name, _, _, end, _) in sent.items():
        to_process, to_name, _, start, _, _ = received[flow]
        assert process != to_process and start >= end
        (stage, microbatch), (to_stage, to_microbatch) = ([int(n) for n in of.replace("BW", "F").replace("B", "F").split("F")] for of in (name, to_name))
        assert microbatch == to_microbatch and abs(stage - to_stage) == 1
        assert (to_stage > stage) == ("F" in name)


def test_a_trace_has_its_steps_and_all_that_ranks_did(command, exported, tmp_path):
    plan, trace = str(tmp_path / "plan.json"), str(tmp_path / "trace.json")
    command("plan", str(EXAMPLES / "tiny-llama.toml"), "-o", plan)
    command("run", plan, "--steps", "3", "--trace", trace, "--trace-steps", "1..3")
    events = Events(exported(trace, "perfetto"))
    steps = [slice for slice in events.slices if slice[2] == "step"]
    assert [slice[1] for slice in steps] == ["step 1", "step 2"]
    rows = table(exported(trace, "csv"))
    starts = dict(zip(("1", "2"), (step[3] for step in steps)))
    expected = sorted(
        (f"measured: rank {row['rank']}", row["what"], starts[row["step"]] + int(row["start_ns"]), starts[row["step"]] + int(row["end_ns"]))
        for row in rows
    )
    assert sorted(slice[:2] + slice[3:5] for slice in events.slices if slice[2] != "step") == expected


def test_text_of_a_binary_format_is_refused_by_name(command, tmp_path):
    pipeplan = pytest.importorskip("pipeplan")
    plan = pipeplan.plan(str(EXAMPLES / "two-ranks.toml"))
    with pytest.raises(pipeplan.SpecError, match="binary"):
        plan.export("perfetto")
    assert Events(plan.export_bytes("perfetto")).slices

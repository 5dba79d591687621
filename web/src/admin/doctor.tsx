// The doctor's checks of a machine, and the report of its last attack.

import { useSignal } from "@preact/signals";

import { get } from "../api/client";
import type { DoctorView } from "../api/schemas";
import { RequestView, useRequest } from "../components/request";
import { Table } from "../components/table";
import { WorkerSelect } from "../components/worker_select";
import { formatDateTime } from "../lib/format";

/** DoctorView.attack, which the OpenAPI document leaves open. */
interface AttackReport {
    at: string;
    summary: string;
    counts: Record<string, number>;
    seconds: number;
    probes: { id: string; group: string; tries: string; verdict: string; evidence: string }[];
}

const VERDICT_CLASSES: Record<string, string> = { contained: "ok", "not applicable": "off", undecided: "warn" };
const LEVEL_CLASSES: Record<string, string> = { ok: "ok", warn: "warn", FAIL: "failed" };

export function Doctor() {
    const worker = useSignal("");
    const loaded = useRequest(
        (signal) => get<DoctorView>("/api/admin/doctor", { worker: worker.value }, signal),
        [worker.value],
    );
    return (
        <>
            <div class="row">
                <WorkerSelect label="Machine of" any="Any worker" value={worker} />
                <button type="button" class="plain" onClick={loaded.reload}>
                    Check again
                </button>
            </div>
            <RequestView request={loaded}>
                {(report) => (
                    <>
                        <p class="note">
                            {report.worker}, {formatDateTime(report.at)}:{" "}
                            {Object.entries(report.counts)
                                .map(([level, count]) => `${count} ${level}`)
                                .join(", ")}
                            .
                        </p>
                        <Table
                            label="Checks"
                            rows={report.checks}
                            keyOf={(check) => check.name}
                            columns={[
                                { name: "Check", render: (check) => <strong>{check.name}</strong> },
                                {
                                    name: "Result",
                                    render: (check) => (
                                        <span class={`state ${LEVEL_CLASSES[check.level] ?? ""}`}>{check.level}</span>
                                    ),
                                },
                                { name: "Found", render: (check) => check.found },
                                { name: "What to do", render: (check) => check.remedy },
                            ]}
                        />
                        <h2>Attack</h2>
                        {report.attack ? (
                            <AttackResult attack={report.attack as unknown as AttackReport} />
                        ) : (
                            <p class="note">
                                No attack was tried on this machine: <code>warren doctor --attack</code> does.
                            </p>
                        )}
                    </>
                )}
            </RequestView>
        </>
    );
}

function AttackResult({ attack }: { attack: AttackReport }) {
    return (
        <>
            <p>{attack.summary}</p>
            <p class="note">
                {formatDateTime(attack.at)}, {attack.seconds.toFixed(0)} s:{" "}
                {Object.entries(attack.counts)
                    .map(([verdict, count]) => `${count} ${verdict}`)
                    .join(", ")}
                .
            </p>
            <Table
                label="Probes"
                rows={attack.probes}
                keyOf={(probe) => probe.id}
                columns={[
                    { name: "Probe", render: (probe) => <strong>{probe.id}</strong> },
                    { name: "Group", render: (probe) => probe.group },
                    { name: "Tries", render: (probe) => probe.tries },
                    {
                        name: "Verdict",
                        render: (probe) => (
                            <span class={`state ${VERDICT_CLASSES[probe.verdict] ?? "failed"}`}>{probe.verdict}</span>
                        ),
                    },
                    { name: "Evidence", render: (probe) => probe.evidence },
                ]}
            />
        </>
    );
}

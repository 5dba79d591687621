// What the doctor says of the machine, and the report of the last attack.

import { useSignal } from "@preact/signals";

import { get } from "../api";
import { Shown, useLoaded } from "../parts/load";
import { Table } from "../parts/table";
import { fullTime } from "../parts/units";
import { WorkerChoice } from "../parts/worker_choice";

interface Check {
    name: string;
    level: string;
    found: string;
    remedy: string;
}

interface Attack {
    at: string;
    summary: string;
    counts: Record<string, number>;
    seconds: number;
    probes: { id: string; group: string; tries: string; verdict: string; evidence: string }[];
}

interface Report {
    worker: string;
    at: string;
    counts: Record<string, number>;
    checks: Check[];
    attack: Attack | null;
}

const VERDICTS: Record<string, string> = { contained: "ok", "not applicable": "off", undecided: "warn" };
const LOOKS: Record<string, string> = { ok: "ok", warn: "warn", FAIL: "failed" };

export function Doctor() {
    const worker = useSignal("");
    const loaded = useLoaded(
        (signal) => get<Report>("/api/admin/doctor", { worker: worker.value }, signal),
        [worker.value],
    );
    return (
        <>
            <div class="row">
                <WorkerChoice label="Machine of" any="Any worker" value={worker} />
                <button type="button" class="plain" onClick={loaded.again}>
                    Check again
                </button>
            </div>
            <Shown of={loaded}>
                {(report) => (
                    <>
                        <p class="note">
                            {report.worker}, {fullTime(report.at)}:{" "}
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
                                { name: "Check", show: (check) => <strong>{check.name}</strong> },
                                {
                                    name: "Result",
                                    show: (check) => (
                                        <span class={`state ${LOOKS[check.level] ?? ""}`}>{check.level}</span>
                                    ),
                                },
                                { name: "Found", show: (check) => check.found },
                                { name: "What to do", show: (check) => check.remedy },
                            ]}
                        />
                        <h2>Attack</h2>
                        {report.attack ? (
                            <AttackReport attack={report.attack} />
                        ) : (
                            <p class="note">
                                No attack was tried on this machine: <code>warren doctor --attack</code> does.
                            </p>
                        )}
                    </>
                )}
            </Shown>
        </>
    );
}

function AttackReport({ attack }: { attack: Attack }) {
    return (
        <>
            <p>{attack.summary}</p>
            <p class="note">
                {fullTime(attack.at)}, {attack.seconds.toFixed(0)} s:{" "}
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
                    { name: "Probe", show: (probe) => <strong>{probe.id}</strong> },
                    { name: "Group", show: (probe) => probe.group },
                    { name: "Tries", show: (probe) => probe.tries },
                    {
                        name: "Verdict",
                        show: (probe) => (
                            <span class={`state ${VERDICTS[probe.verdict] ?? "failed"}`}>{probe.verdict}</span>
                        ),
                    },
                    { name: "Evidence", show: (probe) => probe.evidence },
                ]}
            />
        </>
    );
}

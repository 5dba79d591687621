// The layers that isolate the sandbox, as the kernel reported them.

import { Fact } from "../components/facts";
import { formatBytes, MIB } from "../lib/format";
import type { TabProps } from "../pages/session";

const MEANINGS: Record<string, string> = {
    user_namespace: "Users inside are other users than those of the machine",
    pid_namespace: "It sees its own processes only",
    mount_namespace: "It has a tree of files of its own",
    network_namespace: "It has network interfaces of its own",
    ipc_namespace: "It shares no memory or queues with others",
    uts_namespace: "It has a host name of its own",
    cgroup_namespace: "It does not see how the machine divides its resources",
    unique_uid: "No other sandbox runs as the same user of the machine",
    no_host_root: "Nothing inside runs as the root of the machine",
    capabilities: "Commands have no privileges of root",
    no_new_privs: "No program can gain privileges, setuid programs included",
    seccomp: "The kernel filters its system calls",
    system_calls: "The filter that is loaded allows nothing beyond the list",
    read_only_root: "The system's files cannot be changed",
    masked_paths: "Files of the kernel that tell or change too much are hidden",
    mount_flags: "Mounted files bring neither privileges nor devices",
    no_host_files: "No file of the machine is open inside",
    loopback_only: "The only network interface is its own loopback",
    no_network: "It reaches nothing outside",
    memory_limit: "Memory is bounded",
    swap_off: "It cannot fill the machine's swap",
    socket_limit: "The buffers of its sockets are bounded",
    cpu_limit: "Processor time is bounded",
    pids_limit: "The number of processes is bounded",
    rlimits: "Open files, core dumps and locked memory are bounded",
    disk_limit: "Disk space is bounded",
    inode_limit: "The number of files is bounded",
    guest_kernel: "It has a kernel of its own",
};

/** SessionView.isolation, which the OpenAPI document leaves open. */
interface IsolationReport {
    provider: string;
    runtime: string;
    in_force: Record<string, string>;
    missing: Record<string, string>;
    gpus?: Record<string, string>;
}

export function IsolationTab({ session }: TabProps) {
    const report = session.isolation as unknown as IsolationReport | null | undefined;
    if (!report)
        return <p class="note">The session has no sandbox now, so there is nothing to say about its isolation.</p>;
    const limits = session.limits;
    return (
        <>
            <p>
                Made by <strong>{report.provider}</strong> with <strong>{report.runtime}</strong>.{" "}
                {Object.keys(report.in_force).length} layers hold, {Object.keys(report.missing).length} do not. The
                kernel said so when the sandbox was made.
            </p>
            {Object.keys(report.missing).length > 0 && (
                <LayerList title="Not in force" layers={report.missing} holds={false} />
            )}
            <LayerList title="In force" layers={report.in_force} holds />
            {report.gpus && Object.keys(report.gpus).length > 0 && (
                <LayerList title="Open devices" layers={report.gpus} holds={false} />
            )}
            {limits && (
                <>
                    <h2>Limits</h2>
                    <dl class="facts">
                        <Fact name="CPU">{limits.cpus} cores</Fact>
                        <Fact name="Memory">{formatBytes(limits.memory_mb * MIB)}</Fact>
                        <Fact name="Disk">{formatBytes(limits.disk_mb * MIB)}</Fact>
                        <Fact name="Processes">{limits.pids}</Fact>
                        <Fact name="Open files">{limits.open_files}</Fact>
                    </dl>
                </>
            )}
        </>
    );
}

function LayerList({ title, layers, holds }: { title: string; layers: Record<string, string>; holds: boolean }) {
    return (
        <section aria-label={title}>
            <h2>{title}</h2>
            <ul class="layers">
                {Object.entries(layers).map(([layer, evidence]) => (
                    <li key={layer}>
                        <span class={`state ${holds ? "ok" : "warn"}`}>{holds ? "held" : "not held"}</span>
                        <div>
                            <strong>{layer.replaceAll("_", " ")}</strong>
                            {MEANINGS[layer] && <span>: {MEANINGS[layer]}</span>}
                            <div class="note mono">{String(evidence)}</div>
                        </div>
                    </li>
                ))}
            </ul>
        </section>
    );
}

// Sandboxes that last, as E2B's pages about persistence, auto-resume, snapshots and forking show it.
import assert from 'node:assert/strict'
import { NotFoundError, Sandbox, SandboxError } from 'e2b'
import { UNKNOWN, done, newMark, refused, until, webUrl, withSandbox } from './checks.mjs'

const stateOf = async (sandbox) => (await sandbox.getInfo()).state
const secondsLeft = async (sandbox) => ((await sandbox.getInfo()).endAt.getTime() - Date.now()) / 1000

// pause and resume
const mark = newMark()
const sandbox = await Sandbox.create({ metadata: mark }) // it starts running
await sandbox.files.write('note', 'kept')
const clock = await sandbox.commands.run('while sleep 0.1; do date >> ticks; done', { background: true })
await until(() => sandbox.files.exists('ticks'))
assert.equal(await sandbox.pause(), true)
assert.equal(await sandbox.betaPause(), false) // it is paused already
assert.equal(await sandbox.isRunning(), false)
assert.equal(await stateOf(sandbox), 'paused')
const paginator = Sandbox.list({ query: { metadata: mark, state: ['paused'] } })
const sandboxes = await paginator.nextItems()
while (paginator.hasNext) sandboxes.push(...(await paginator.nextItems()))
assert.deepEqual(sandboxes.map((found) => [found.sandboxId, found.state]), [[sandbox.sandboxId, 'paused']])
const sameSandbox = await sandbox.connect()
assert.equal(sameSandbox.sandboxId, sandbox.sandboxId)
assert.equal(await sameSandbox.files.read('note'), 'kept')
const before = (await sandbox.files.read('ticks')).length // what ran goes on
await until(async () => (await sandbox.files.read('ticks')).length > before)
assert.ok((await sandbox.commands.list()).some((process) => process.pid === clock.pid))
await Sandbox.pause(sandbox.sandboxId)
const other = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 60 * 1000 }) // with a time-out of its own
const left = await secondsLeft(other)
assert.ok(left > 40 && left <= 60, `${left}`)
await other.pause()
assert.equal(await sandbox.kill(), true) // also of a paused one
assert.equal(await Sandbox.kill(sandbox.sandboxId), false)
await refused(() => other.pause(), NotFoundError)

// auto-pause
const brief = await Sandbox.create({ timeoutMs: 2000, lifecycle: { onTimeout: 'pause' } })
await brief.files.write('note', 'kept')
for (let time = 0; time < 2; time++) {
  await until(async () => (await stateOf(brief)) === 'paused', 60_000)
  await brief.connect({ timeoutMs: 2000 })
  assert.equal(await brief.files.read('note'), 'kept')
}
assert.deepEqual((await brief.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: false })
await brief.kill()

// auto-resume
const lifecycle = { onTimeout: 'pause', autoResume: true }
await withSandbox(Sandbox, { timeoutMs: 10 * 60 * 1000, lifecycle }, async (one) => {
  await one.files.write('/home/user/hello.txt', 'hello from a paused sandbox')
  await one.pause()
  assert.equal(await one.files.read('/home/user/hello.txt'), 'hello from a paused sandbox')
  assert.equal(await stateOf(one), 'running')
  assert.ok((await secondsLeft(one)) > 500)
  await one.commands.run('python3 -m http.server 3000', { background: true })
  const address = webUrl(one.getHost(3000))
  await until(async () => (await fetch(address)).status === 200)
  await one.pause()
  assert.equal(await one.isRunning(), false)
  assert.ok((await (await fetch(address)).text()).includes('hello.txt')) // the request waits until it runs
})

// snapshots, and what starts from them
await withSandbox(Sandbox, {}, async (source) => {
  await source.files.write('/home/user/config.json', '{}')
  const snapshot = await source.createSnapshot()
  const named = await Sandbox.createSnapshot(source.sandboxId, { name: `ready-${mark.mark.slice(0, 8)}:v2` })
  assert.ok(named.names[0].endsWith(':v2'))
  for (const template of [snapshot.snapshotId, named.names[0]]) {
    const newSandbox = await Sandbox.create(template)
    assert.equal(await newSandbox.files.read('/home/user/config.json'), '{}')
    await newSandbox.kill()
  }
  const snapshots = []
  for (const pages = Sandbox.listSnapshots({ limit: 1 }); pages.hasNext; ) snapshots.push(...(await pages.nextItems()))
  assert.ok(snapshots.some((found) => found.snapshotId === snapshot.snapshotId))
  const mine = await source.listSnapshots().nextItems()
  assert.deepEqual(mine.map((found) => found.snapshotId), [named.snapshotId, snapshot.snapshotId])
  assert.deepEqual(await Sandbox.listSnapshots({ sandboxId: UNKNOWN }).nextItems(), [])
  for (const { snapshotId } of mine) {
    assert.equal(await Sandbox.deleteSnapshot(snapshotId), true)
    assert.equal(await Sandbox.deleteSnapshot(snapshotId), false)
  }
  await refused(() => Sandbox.create(snapshot.snapshotId), SandboxError)

  // forks
  await source.files.write('/home/user/state.txt', 'before')
  const forks = [...(await source.fork({ count: 2, timeoutMs: 60_000 })), ...(await Sandbox.fork(source.sandboxId))]
  assert.ok(forks.every((fork) => fork instanceof Sandbox))
  assert.equal(new Set([source, ...forks].map((one) => one.sandboxId)).size, 4)
  await forks[0].files.write('/home/user/state.txt', 'after')
  const texts = await Promise.all([source, ...forks].map((one) => one.files.read('/home/user/state.txt')))
  assert.deepEqual(texts, ['before', 'after', 'before', 'before'])
  for (const fork of forks) await fork.kill()

  // pauses that keep files alone
  await source.commands.run('sleep 1000', { background: true })
  assert.equal(await source.pause({ keepMemory: false }), true)
  assert.equal(await source.isRunning(), false)
  await source.connect()
  assert.equal(await source.files.read('/home/user/state.txt'), 'before')
  assert.deepEqual(await source.commands.list(), [])
})
done()

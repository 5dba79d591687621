// The life of a sandbox: create with every option, connect, info, list, time-outs, metrics, the end.
import assert from 'node:assert/strict'
import { AuthenticationError, E2B, NotFoundError, Sandbox, SandboxError, TimeoutError } from 'e2b'
import { ONE_PORT, UNKNOWN, done, newMark, refused, until, withSandbox } from './checks.mjs'

const secondsLeft = async (sandbox) => ((await sandbox.getInfo()).endAt.getTime() - Date.now()) / 1000

await withSandbox(Sandbox, {}, async (sandbox) => {
  assert.match(sandbox.sandboxId, /^[a-z0-9]+$/)
  assert.equal(await sandbox.isRunning(), true)
  assert.equal((await sandbox.commands.run('whoami; pwd')).stdout, 'user\n/home/user\n')
  const info = await sandbox.getInfo()
  assert.equal(info.sandboxId, sandbox.sandboxId)
  assert.equal(info.state, 'running')
  assert.deepEqual(info.metadata, {})
  assert.ok(info.cpuCount >= 1 && info.memoryMB >= 64)
  assert.deepEqual(await Sandbox.getInfo(sandbox.sandboxId), info)
  assert.equal((await Sandbox.getFullInfo(sandbox.sandboxId)).sandboxId, sandbox.sandboxId)
  assert.ok(sandbox.getHost(3000).startsWith(`3000-${sandbox.sandboxId}.`))
  assert.ok(!sandbox.getHost(3000).includes('e2b.app'))
})

const mark = newMark()
const options = {
  metadata: { ...mark, naïve: 'ключ & = % +' },
  envs: { COLOUR: 'green' },
  timeoutMs: 120_000,
  secure: true,
  allowInternetAccess: false,
  network: { allowPublicTraffic: true },
  lifecycle: { onTimeout: 'kill' },
  requestTimeoutMs: 60_000,
}
const sandbox = await Sandbox.create('base', options)
try {
  assert.equal((await sandbox.commands.run('echo $COLOUR')).stdout, 'green\n')
  const info = await sandbox.getInfo()
  assert.deepEqual(info.metadata, options.metadata)
  assert.equal(info.allowInternetAccess, false)
  await sandbox.setTimeout(600_000)
  let left = await secondsLeft(sandbox)
  assert.ok(left > 500 && left <= 601, `${left}`)
  await Sandbox.setTimeout(sandbox.sandboxId, 100_000)
  left = await secondsLeft(sandbox)
  assert.ok(left > 50 && left <= 101, `${left}`)
  const other = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 300_000 })
  assert.ok((await secondsLeft(sandbox)) > 200)
  await sandbox.files.write('note', 'kept')
  assert.equal(await other.files.read('note'), 'kept')
  assert.equal((await (await sandbox.connect()).commands.run('cat note')).stdout, 'kept')

  const twin = await Sandbox.create({ metadata: mark, timeoutMs: 60_000 })
  const pages = Sandbox.list({ query: { metadata: mark, state: ['running'] }, limit: 1, order: 'asc' })
  const ids = []
  while (pages.hasNext) ids.push(...(await pages.nextItems()).map((found) => found.sandboxId))
  assert.deepEqual(ids, [sandbox.sandboxId, twin.sandboxId])
  const token = Sandbox.list({ query: { metadata: { mark: 'nobody' } } })
  assert.deepEqual(await token.nextItems(), [])
  assert.equal(token.nextToken, undefined)
  await twin.kill()

  await until(async () => (await sandbox.getMetrics()).length > 0)
  const [point] = await Sandbox.getMetrics(sandbox.sandboxId)
  assert.ok(point.cpuCount >= 1 && point.memTotal >= point.memUsed && point.diskTotal >= point.diskUsed)
} finally {
  assert.equal(await sandbox.kill(), true)
}
assert.equal(await Sandbox.kill(sandbox.sandboxId), false)
assert.equal(await sandbox.isRunning(), false)
await refused(() => sandbox.getInfo(), NotFoundError)
await refused(() => sandbox.setTimeout(1000), NotFoundError)
await refused(() => Sandbox.connect(UNKNOWN), NotFoundError)
await refused(() => sandbox.commands.run('true'), NotFoundError)
await refused(() => sandbox.files.read('note'), TimeoutError)
await refused(() => Sandbox.create({ apiKey: `e2b_${'0'.repeat(80)}` }), AuthenticationError)
await refused(() => Sandbox.create('no-such-template'), SandboxError)

const brief = await Sandbox.create({ timeoutMs: 2000 })
await until(async () => !(await brief.isRunning()), 60_000)

const bound = new E2B({ requestTimeoutMs: 60_000 })
await withSandbox(bound.Sandbox, {}, async (one) => {
  assert.equal((await one.commands.run('echo bound')).stdout, 'bound\n')
})
if (ONE_PORT) {
  const prefixed = `${process.env.E2B_API_URL}/e2b`
  await withSandbox(Sandbox, { apiUrl: prefixed, sandboxUrl: prefixed }, async (one) => {
    await one.files.write('note', 'by prefix')
    assert.equal((await one.commands.run('cat note')).stdout, 'by prefix')
  })
}
done()

// Commands: output, status, input, surroundings, time-outs; in the background, and found again.
import assert from 'node:assert/strict'
import { AuthenticationError, CommandExitError, InvalidArgumentError, NotFoundError, Sandbox, TimeoutError } from 'e2b'
import { done, refused, until, withSandbox } from './checks.mjs'

await withSandbox(Sandbox, { envs: { SHARED: 'sandbox' } }, async (sandbox) => {
  const { commands } = sandbox
  const result = await commands.run('echo out; echo err >&2')
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\n', 'err\n', 0])
  const failed = await refused(() => commands.run('echo half; exit 3'), CommandExitError)
  assert.deepEqual([failed.exitCode, failed.stdout, failed.error], [3, 'half\n', 'exit status 3'])

  const out = []
  const times = []
  await commands.run('echo one; sleep 1; echo two; echo bad >&2', {
    onStdout: (text) => {
      out.push(text)
      times.push(Date.now())
    },
    onStderr: (text) => out.push(text),
  })
  assert.deepEqual(out, ['one\n', 'two\n', 'bad\n'])
  assert.ok(times[1] - times[0] > 700, 'the output was kept back')

  const where = { cwd: '/tmp', envs: { A: 'x y' }, user: 'root' }
  assert.equal((await commands.run('pwd; echo $A $SHARED; whoami', where)).stdout, '/tmp\nx y sandbox\nroot\n')
  await refused(() => commands.run('pwd', { cwd: '/none' }), InvalidArgumentError, 'cwd')
  await refused(() => commands.run('pwd', { user: 'root123' }), AuthenticationError, "invalid username: 'root123'")
  await refused(() => commands.run('sleep 60', { timeoutMs: 1500 }), TimeoutError)
  assert.equal((await commands.run('sleep 1; echo slow', { timeoutMs: 0 })).stdout, 'slow\n')
  const lines = (await commands.run('seq 1 100000')).stdout
  assert.equal(lines.length, 588_895)

  const handle = await commands.run('read x; echo got $x; sleep 300', { background: true, stdin: true })
  const listed = (await commands.list()).find((info) => info.pid === handle.pid)
  assert.deepEqual([listed.cmd, listed.args[0]], ['/bin/bash', '-l'])
  await commands.sendStdin(handle.pid, 'words\n')
  await until(() => handle.stdout === 'got words\n')
  const heard = []
  const other = await commands.connect(handle.pid, { onStdout: (text) => heard.push(text) })
  await other.disconnect()
  assert.equal(await commands.kill(handle.pid), true)
  await refused(() => handle.wait(), CommandExitError)
  await until(async () => (await commands.kill(handle.pid)) === false)
  await refused(() => commands.connect(999_999), NotFoundError)
  await refused(() => commands.sendStdin(999_999, 'x'), NotFoundError)

  assert.equal(commands.supportsStdinClose, true)
  const cat = await commands.run('cat; echo end', { background: true, stdin: true })
  await cat.sendStdin('a')
  await cat.closeStdin()
  assert.equal((await cat.wait()).stdout, 'aend\n')
  const quiet = await commands.run('cat', { background: true, stdin: true })
  await commands.closeStdin(quiet.pid)
  assert.equal((await quiet.wait()).exitCode, 0)

  const slow = await commands.run('sleep 1; echo heard', { background: true })
  await slow.disconnect()
  assert.equal((await (await commands.connect(slow.pid)).wait()).stdout, 'heard\n')
  const killed = await commands.run('sleep 300', { background: true })
  assert.equal(await killed.kill(), true)

  const many = await Promise.all(Array.from({ length: 20 }, (_, number) => commands.run(`sleep 0.5; echo ${number}`)))
  assert.deepEqual(many.map((one) => Number(one.stdout)), [...Array(20).keys()])

  const last = await commands.run('sleep 300', { background: true })
  await sandbox.kill()
  await refused(() => last.wait(), TimeoutError, 'ended before the stream completed')
})
done()

// Terminals: input, size, user; connecting to one that runs; the end.
import assert from 'node:assert/strict'
import { CommandExitError, NotFoundError, Sandbox } from 'e2b'
import { done, refused, until, withSandbox } from './checks.mjs'

const bytes = (text) => new TextEncoder().encode(text)

await withSandbox(Sandbox, {}, async (sandbox) => {
  const { pty } = sandbox
  let screen = ''
  const decoder = new TextDecoder()
  const onData = (data) => {
    screen += decoder.decode(data, { stream: true })
  }
  const terminal = await pty.create({ cols: 80, rows: 24, onData, cwd: '/tmp', envs: { COLOUR: 'green' }, user: 'user' })
  await pty.sendInput(terminal.pid, bytes('stty size; pwd; echo $COLOUR-$((6*7))\n'))
  await until(() => screen.includes('24 80') && screen.includes('green-42') && screen.includes('/tmp'))
  await pty.resize(terminal.pid, { cols: 132, rows: 50 })
  await pty.sendInput(terminal.pid, bytes('stty size\n'))
  await until(() => screen.includes('50 132'))
  let second = ''
  const other = await pty.connect(terminal.pid, { onData: (data) => (second += new TextDecoder().decode(data)) })
  await pty.sendInput(terminal.pid, bytes('echo both-$((2+3))\n'))
  await until(() => screen.includes('both-5') && second.includes('both-5'))
  await other.disconnect()
  await pty.sendInput(terminal.pid, bytes('exit 7\n'))
  assert.equal((await refused(() => terminal.wait(), CommandExitError)).exitCode, 7)
  const killed = await pty.create({ cols: 80, rows: 24, onData: () => {}, timeoutMs: 0 })
  assert.equal(await pty.kill(killed.pid), true)
  await refused(() => killed.wait(), CommandExitError)
  await refused(() => pty.resize(999_999, { cols: 1, rows: 1 }), NotFoundError)
})
done()

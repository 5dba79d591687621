// What the programs share: errors that must come, waiting, and the address of a host.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'

export const ONE_PORT = 'E2B_API_URL' in process.env
export const UNKNOWN = '0'.repeat(32)

export async function refused(call, kind, says = '') {
  let error
  try {
    await call()
  } catch (caught) {
    error = caught
  }
  assert.ok(error, `${kind.name} was expected`)
  assert.ok(error instanceof kind, `${kind.name} was expected, not ${error.stack}`)
  assert.ok(error.message.toLowerCase().includes(says), `${says} is not in: ${error.message}`)
  return error
}

export async function until(holds, timeoutMs = 20_000) {
  const deadline = Date.now() + timeoutMs
  while (!(await holds())) {
    assert.ok(Date.now() < deadline, 'it did not happen in time')
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

export const newMark = () => ({ mark: crypto.randomUUID() })

export const webUrl = (host) => `${ONE_PORT ? 'http' : 'https'}://${host}`

export async function withSandbox(Sandbox, opts, use) {
  const sandbox = await Sandbox.create(opts)
  try {
    await use(sandbox)
  } finally {
    await sandbox.kill()
  }
}

export function done() {
  const file = new URL('./node_modules/e2b/package.json', import.meta.url)
  console.log(`ok, e2b ${JSON.parse(readFileSync(file, 'utf8')).version}`)
  process.exit() // the SDK leaves a timer of a minute behind when a cell is refused
}

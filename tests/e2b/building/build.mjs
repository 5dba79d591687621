// Builds a template with JavaScript's SDK, and makes a sandbox of it.
import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import { Sandbox, Template } from 'e2b'

writeFileSync('hello.txt', 'from a file\n')
const name = process.env.TEMPLATE
const template = Template()
  .fromTemplate('base')
  .runCmd('touch made')
  .copy('hello.txt', '/opt/')
  .setEnvs({ COLOUR: 'blue' })
  .setWorkdir('/srv/app')
await Template.build(template, name, { cpuCount: 1, memoryMB: 512 })
assert.equal(await Template.exists(name), true)
const sandbox = await Sandbox.create(name, { timeoutMs: 120_000 })
const { stdout } = await sandbox.commands.run('pwd; cat /opt/hello.txt; ls ~; echo $COLOUR')
assert.equal(stdout, '/srv/app\nfrom a file\nmade\nblue\n')
await sandbox.kill()
let said = ''
try {
  await Template.build(Template().fromTemplate('base').runCmd('whoami', { user: 'root123' }), `${name}-failing`)
} catch (error) {
  said = error.message
}
assert.ok(said.includes("'whoami': command failed: unauthenticated: invalid username: 'root123'"), said)
const slow = [0, 1, 2].map((number) => [Template().fromTemplate('base').runCmd('sleep 1'), `${name}-${number}`])
await Promise.all(slow.map(([steps, alias]) => Template.build(steps, alias, { skipCache: true }))) // they wait for each other
console.log('done')

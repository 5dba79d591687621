// Templates: those that there are, and one that is built of steps, with tags.
import assert from 'node:assert/strict'
import { Sandbox, Template } from 'e2b'
import { done, newMark, until } from './checks.mjs'

assert.equal(await Template.exists('base'), true)
assert.equal(await Template.exists('no-such-template'), false)
assert.equal(await Template.aliasExists('code-interpreter-v1'), true)

const name = `built-js-${newMark().mark.slice(0, 8)}`
const steps = Template().fromTemplate('base').setEnvs({ STAGE: 'built' }).runCmd('echo made > /home/user/made.txt')
const lines = []
const built = await Template.build(steps, name, { onBuildLogs: (line) => lines.push(line.message) })
assert.ok(lines.some((line) => line.includes('made.txt')))
const sandbox = await Sandbox.create(name)
assert.equal((await sandbox.commands.run('cat made.txt; echo $STAGE')).stdout, 'made\nbuilt\n')
await sandbox.kill()
await Template.assignTags(`${name}:default`, ['stable', 'v1'])
await Template.removeTags(name, 'v1')
const tags = (await Template.getTags(built.templateId)).map((tag) => tag.tag)
assert.ok(tags.includes('stable') && !tags.includes('v1'))
const started = await Template.buildInBackground(steps, name)
await until(async () => (await Template.getBuildStatus(started)).status === 'ready', 120_000)
assert.equal(await Sandbox.deleteSnapshot(name), true) // which deletes a template, too
done()

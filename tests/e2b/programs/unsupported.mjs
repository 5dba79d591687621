// What Warren does not have is refused with a sentence that says so.
import assert from 'node:assert/strict'
import { NotFoundError, Sandbox, Secret } from 'e2b'
import { done, refused, withSandbox } from './checks.mjs'

await withSandbox(Sandbox, {}, async (sandbox) => {
  const calls = [
    () => Secret.create('name', 'value'),
    () => Secret.list().nextItems(),
    () => Secret.getInfo('name'),
    () => Secret.update('name', 'value'),
    () => Secret.destroy('name'),
    () => Sandbox.create({ iam: { tokens: { a: Secret.iamToken({ audience: 'there', tokenType: 'JWT-SVID' }) } } }),
    () => Sandbox.create({ mcp: { context7: {} } }),
  ]
  for (const call of calls) await refused(call, Error, 'not support')
  assert.equal(await Sandbox.deleteSnapshot('none'), false)
  assert.ok(sandbox.getMcpUrl().endsWith('/mcp')) // made up by the SDK
  await refused(() => sandbox.getMcpToken(), NotFoundError)
  assert.equal((await sandbox.commands.run('echo alive')).stdout, 'alive\n')
})
done()

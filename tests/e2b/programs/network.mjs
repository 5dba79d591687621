// A server in a sandbox by its host name, and who may open it; rules of the network.
import assert from 'node:assert/strict'
import { Sandbox, SandboxError } from 'e2b'
import { done, refused, until, webUrl, withSandbox } from './checks.mjs'

async function serve(sandbox, headers = {}) {
  await sandbox.files.write('site/index.html', '<h1>served</h1>')
  await sandbox.commands.run('python3 -m http.server 3000', { background: true, cwd: '/home/user/site' })
  const address = webUrl(sandbox.getHost(3000))
  await until(async () => (await fetch(address, { headers })).status === 200)
  return address
}

await withSandbox(Sandbox, {}, async (sandbox) => {
  const address = await serve(sandbox)
  assert.equal(await (await fetch(address)).text(), '<h1>served</h1>')
  assert.equal((await fetch(webUrl(sandbox.getHost(3001)))).status, 502)
})

await withSandbox(Sandbox, { network: { allowPublicTraffic: false } }, async (sandbox) => {
  assert.ok(sandbox.trafficAccessToken)
  const headers = { 'e2b-traffic-access-token': sandbox.trafficAccessToken }
  const address = await serve(sandbox, headers)
  assert.ok([401, 403].includes((await fetch(address)).status))
  assert.equal((await fetch(address, { headers })).status, 200)
})

await withSandbox(Sandbox, { allowInternetAccess: false }, async (sandbox) => {
  await refused(() => sandbox.commands.run("timeout 5 bash -c ': > /dev/tcp/192.0.2.1/80'"), SandboxError)
  await sandbox.updateNetwork({ allowInternetAccess: false })
  await Sandbox.updateNetwork(sandbox.sandboxId, { allowInternetAccess: false })
})

done()

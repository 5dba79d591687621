// Files: contents of every kind, folders, links, users, big ones; addresses that work without a key.
import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { AuthenticationError, FileNotFoundError, FileType, InvalidArgumentError, Sandbox, getSignature } from 'e2b'
import { done, refused, sleep, withSandbox } from './checks.mjs'

const HOME = '/home/user'
const digest = (data) => createHash('sha256').update(data).digest('hex')

await withSandbox(Sandbox, {}, async (sandbox) => {
  const { files } = sandbox
  const info = await files.write('note.txt', 'first')
  assert.deepEqual([info.name, info.path, info.type], ['note.txt', `${HOME}/note.txt`, FileType.FILE])
  assert.equal(await files.read('note.txt'), 'first')
  const data = randomBytes(300_000)
  const buffer = data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength)
  await files.write('buffer', buffer)
  assert.deepEqual(Buffer.from(await files.read('buffer', { format: 'bytes' })), data)
  await files.write('blob', new Blob([data]))
  assert.equal((await files.read('blob', { format: 'blob' })).size, data.length)
  await files.write('stream', new Blob([data]).stream())
  const parts = []
  for await (const part of await files.read('stream', { format: 'stream' })) parts.push(part)
  assert.equal(digest(Buffer.concat(parts)), digest(data))
  await files.write('packed', 'again '.repeat(50_000), { gzip: true })
  assert.equal((await files.read('packed', { gzip: true })).length, 300_000)
  await files.write('octets', 'x', { useOctetStream: true })
  await files.write('described', 'x', { metadata: { author: 'me' } })
  assert.deepEqual((await files.getInfo('described')).metadata, { author: 'me' })
  for (const name of ['with space & more.txt', 'žluťoučký.txt', 'per%20cent#hash?.txt']) {
    await files.write(`a/b/${name}`, name)
    assert.equal(await files.read(`a/b/${name}`), name)
  }
  const many = Array.from({ length: 20 }, (_, number) => ({ path: `many/${number}`, data: `${number}` }))
  assert.equal((await files.write(many)).length, 20)
  assert.equal((await files.writeFiles(many)).length, 20)
  assert.equal((await files.list('many')).length, 20)

  assert.equal(await files.makeDir('folder/inner'), true)
  assert.equal(await files.makeDir('folder/inner'), false)
  await files.write('folder/inner/leaf', '1234')
  assert.deepEqual((await files.list('folder', { depth: 2 })).map((entry) => entry.path), [
    `${HOME}/folder/inner`,
    `${HOME}/folder/inner/leaf`,
  ])
  assert.equal((await files.rename('folder/inner/leaf', 'folder/moved')).size, 4)
  assert.equal(await files.exists('folder/moved'), true)
  await files.remove('folder')
  assert.equal(await files.exists('folder'), false)

  await sandbox.commands.run('chmod 640 note.txt; ln -s note.txt link')
  const facts = await files.getInfo('note.txt')
  assert.deepEqual([facts.size, facts.owner, facts.permissions, facts.mode], [5, 'user', '-rw-r-----', 0o640])
  assert.ok(Math.abs(facts.modifiedTime.getTime() - Date.now()) < 60_000)
  assert.equal((await files.getInfo('link')).symlinkTarget, `${HOME}/note.txt`)
  await files.write('/etc/of-root', 'x', { user: 'root' })
  assert.equal((await files.getInfo('/etc/of-root')).owner, 'root')
  await refused(() => files.read('note.txt', { user: 'stranger' }), AuthenticationError)
  await refused(() => files.read('none'), FileNotFoundError)
  await refused(() => files.list('none'), FileNotFoundError)
  await refused(() => files.getInfo('none'), FileNotFoundError)
  await refused(() => files.rename('none', 'other'), FileNotFoundError)
  await refused(() => files.list('note.txt'), InvalidArgumentError)

  const big = Buffer.alloc(64 << 20, randomBytes(1 << 20))
  await files.write('big', new Blob([big]).stream())
  assert.equal((await sandbox.commands.run('sha256sum big')).stdout.split(' ')[0], digest(big))
  const hash = createHash('sha256')
  for await (const part of await files.read('big', { format: 'stream' })) hash.update(part)
  assert.equal(hash.digest('hex'), digest(big))

  const url = await sandbox.downloadUrl('note.txt', { useSignatureExpiration: 600 })
  assert.equal(await (await fetch(url)).text(), 'first')
  assert.equal(await (await fetch(await sandbox.downloadUrl('note.txt', { user: 'user' }))).text(), 'first')
  const form = new FormData()
  form.append('file', new Blob(['sent']), 'a name')
  const sent = await fetch(await sandbox.uploadUrl('sent'), { method: 'POST', body: form })
  assert.equal(sent.status, 200)
  assert.equal(await files.read('sent'), 'sent')
  assert.equal((await fetch(url.replace('note', 'other'))).status, 401)
  const brief = await sandbox.downloadUrl('note.txt', { useSignatureExpiration: 1 })
  await sleep(2500)
  assert.equal((await fetch(brief)).status, 401)
  const made = await getSignature({ path: 'a', operation: 'read', user: 'user', envdAccessToken: 'token' })
  assert.match(made.signature, /^v1_/)
})
done()

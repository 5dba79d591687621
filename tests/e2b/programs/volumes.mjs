// Volumes as E2B's documents show them: made, found and destroyed, mounted in sandboxes, read and written from outside.
import assert from 'node:assert/strict'
import { Sandbox, Volume, VolumeNotFoundError, VolumePathNotFoundError } from 'e2b'
import { done, refused, withSandbox } from './checks.mjs'

const name = `my-volume-${crypto.randomUUID().slice(0, 8)}`
const volume = await Volume.create(name)
assert.equal(volume.name, name)
assert.equal((await Volume.connect(volume.volumeId)).name, name)
assert.ok((await Volume.list()).some((each) => each.volumeId === volume.volumeId && each.name === name))
assert.ok((await Volume.getInfo(volume.volumeId)).token)
await refused(() => Volume.getInfo('vol'), VolumeNotFoundError)
assert.equal(await Volume.destroy('vol'), false)

await volume.writeFile('/path/to/file', 'file content')
assert.equal(await volume.readFile('/path/to/file'), 'file content')
assert.deepEqual(await volume.readFile('/path/to/file', { format: 'bytes' }), new TextEncoder().encode('file content'))
assert.equal(await (await volume.readFile('/path/to/file', { format: 'blob' })).text(), 'file content')
const pieces = []
for await (const piece of await volume.readFile('/path/to/file', { format: 'stream' })) pieces.push(piece)
assert.equal(Buffer.concat(pieces).toString(), 'file content')
await volume.writeFile('/path/to/blob', new Blob(['of a blob']))
assert.equal(await volume.readFile('/path/to/blob'), 'of a blob')
await volume.writeFile('/path/to/stream', new Blob(['of a stream']).stream())
assert.equal(await volume.readFile('/path/to/stream'), 'of a stream')
await volume.makeDir('/path/to/dir')
await volume.makeDir('/path/to/nested/dir', { force: true })
await refused(() => volume.makeDir('/none/dir'), VolumePathNotFoundError)
const entries = await volume.list('/path/to')
assert.deepEqual(
  entries.map(({ name, type, path }) => [name, type, path]),
  [
    ['blob', 'file', '/path/to/blob'],
    ['dir', 'directory', '/path/to/dir'],
    ['file', 'file', '/path/to/file'],
    ['nested', 'directory', '/path/to/nested'],
    ['stream', 'file', '/path/to/stream'],
  ],
)
const info = await volume.getInfo('/path/to/file')
assert.deepEqual([info.name, info.type, info.path, info.size, info.mode], ['file', 'file', '/path/to/file', 12, 0o644])
assert.ok(info.mtime instanceof Date)
assert.equal(await volume.exists('/path/to/file'), true)
assert.equal(await volume.exists('/none'), false)
const changed = await volume.updateMetadata('/path/to/file', { uid: 1000, gid: 1000, mode: 0o600 })
assert.deepEqual([changed.uid, changed.gid, changed.mode], [1000, 1000, 0o600])

await withSandbox(Sandbox, { volumeMounts: { '/mnt/my-data': volume } }, async (sandbox) => {
  await withSandbox(Sandbox, { volumeMounts: { '/mnt/my-data': name } }, async (other) => {
    await sandbox.files.write('/mnt/my-data/hello.txt', 'Hello, world!')
    assert.equal(await other.files.read('/mnt/my-data/hello.txt'), 'Hello, world!')
  })
  assert.deepEqual((await sandbox.getInfo()).volumeMounts, [{ name, path: '/mnt/my-data' }])
  await refused(() => Volume.destroy(volume.volumeId), Error, '409')
})
assert.equal(await volume.readFile('/hello.txt'), 'Hello, world!')
await volume.remove('/path/to/dir')
await volume.remove('/hello.txt')
await refused(() => volume.readFile('/hello.txt'), VolumePathNotFoundError)
const stolen = new Volume('vol_00000000000000000000000000000000', name, volume.token, volume.domain)
await refused(() => stolen.list('/'), Error, 'token')
assert.equal(await Volume.destroy(volume.volumeId), true)
done()

// A watched folder tells what happens in it as it happens.
import assert from 'node:assert/strict'
import { FileNotFoundError, FilesystemEventType, Sandbox } from 'e2b'
import { done, refused, sleep, until, withSandbox } from './checks.mjs'

await withSandbox(Sandbox, {}, async (sandbox) => {
  const { files } = sandbox
  await files.makeDir('watched/inner')
  const events = []
  const exits = []
  const saw = (name, type) => events.some((event) => event.name === name && event.type === type)
  const watch = await files.watchDir('watched', (event) => events.push(event), {
    onExit: (error) => exits.push(error),
    recursive: true,
    includeEntry: true,
    timeoutMs: 0,
  })
  await files.write('watched/new.txt', '12345')
  await until(() => saw('new.txt', FilesystemEventType.CREATE) && saw('new.txt', FilesystemEventType.WRITE))
  assert.equal(events.findLast((event) => event.type === FilesystemEventType.WRITE).entry.size, 5)
  await files.write('watched/inner/deep', 'x')
  await until(() => saw('inner/deep', FilesystemEventType.WRITE))
  await sandbox.commands.run('chmod 600 watched/new.txt')
  await until(() => saw('new.txt', FilesystemEventType.CHMOD))
  await files.rename('watched/new.txt', 'watched/other.txt')
  await until(() => saw('new.txt', FilesystemEventType.RENAME) && saw('other.txt', FilesystemEventType.CREATE))
  await files.remove('watched/other.txt')
  await until(() => saw('other.txt', FilesystemEventType.REMOVE))
  await watch.stop()
  const count = events.length
  await files.write('watched/unseen', 'x')
  await sleep(300)
  assert.equal(events.length, count)
  await until(() => exits.length === 1)
  await refused(() => files.watchDir('none', () => {}), FileNotFoundError)
})
done()

// The code interpreter: results, charts, errors, output as it comes, contexts, languages, time-outs.
import assert from 'node:assert/strict'
import { Sandbox, TimeoutError } from '@e2b/code-interpreter'
import { done, refused, until, withSandbox } from './checks.mjs'

await withSandbox(Sandbox, { envs: { FROM_CREATE: 'yes' } }, async (sandbox) => {
  const first = await sandbox.runCode('x = 40\nx + 2')
  assert.deepEqual([first.text, first.results[0].isMainResult, first.executionCount], ['42', true, 1])
  assert.equal((await sandbox.runCode('import os; os.environ["FROM_CREATE"]')).text, 'yes')
  assert.equal((await sandbox.runCode('os.environ["ONCE"]', { envs: { ONCE: 'now' } })).text, 'now')
  const printed = await sandbox.runCode('import sys\nprint("out")\nprint("err", file=sys.stderr)')
  assert.deepEqual(printed.logs, { stdout: ['out\n'], stderr: ['err\n'] })
  const failed = await sandbox.runCode('1/0')
  assert.deepEqual([failed.error.name, failed.error.value], ['ZeroDivisionError', 'division by zero'])
  assert.ok(failed.error.traceback.includes('1/0'))

  const seen = { out: [], results: [], errors: [] }
  await sandbox.runCode('print("one")\n5', {
    onStdout: (message) => seen.out.push(message.line),
    onStderr: (message) => seen.out.push(message.line),
    onResult: (result) => seen.results.push(result.text),
  })
  await sandbox.runCode('raise KeyError("k")', { onError: (error) => seen.errors.push(error.name) })
  assert.deepEqual(seen, { out: ['one\n'], results: ['5'], errors: ['KeyError'] })

  assert.deepEqual((await sandbox.listCodeContexts()).map(({ language }) => language), ['python', 'javascript'])
  const context = await sandbox.createCodeContext({ cwd: '/tmp', language: 'python' })
  assert.equal((await sandbox.listCodeContexts()).at(-1).id, context.id)
  const rooted = await sandbox.createCodeContext({ cwd: '/root' })
  assert.equal((await sandbox.runCode('import os; os.getuid()', { context: rooted })).text, '0')
  assert.equal(context.cwd, '/tmp')
  assert.equal((await sandbox.runCode('import os; os.getcwd()', { context })).text, '/tmp')
  assert.equal((await sandbox.runCode('x', { context })).error.name, 'NameError')
  assert.ok((await sandbox.listCodeContexts()).some((found) => found.id === context.id))
  await sandbox.restartCodeContext(context)
  await sandbox.removeCodeContext(context.id)
  assert.ok(!(await sandbox.listCodeContexts()).some((found) => found.id === context.id))
  await refused(() => sandbox.runCode('1', { context }), Error)

  assert.equal((await sandbox.runCode('const a = 6; a * 7', { language: 'javascript' })).text, '42')
  assert.equal((await sandbox.runCode('const b: number = 6; b * 7', { language: 'ts' })).text, '42')
  assert.deepEqual((await sandbox.runCode('echo $((6*7))', { language: 'bash' })).logs.stdout, ['42\n'])
  await refused(() => sandbox.runCode('import time; time.sleep(60)', { timeoutMs: 2000 }), TimeoutError)
  await until(async () => (await sandbox.runCode('x')).text === '40', 60_000)

  const drawn = await sandbox.runCode(
    'import matplotlib.pyplot as plt\nplt.bar(["a", "b"], [3, 4])\nplt.title("Sums")\nplt.show()',
    { timeoutMs: 120_000 },
  )
  assert.equal(drawn.error, undefined)
  assert.ok(drawn.results[0].png.startsWith('iVBOR'))
  assert.deepEqual([drawn.results[0].chart.type, drawn.results[0].chart.title], ['bar', 'Sums'])
  assert.deepEqual(drawn.results[0].formats(), ['png'])
})
done()

// Runs test files in this one process: `node tests/support/together.ts FILE…`. As `--test --test-isolation=none`, which
// however starts the async hooks of node:test before anything can prevent it.
import path from 'node:path'
import './without-async-hooks.ts'

const { run } = await import('node:test')
const { spec: Spec } = await import('node:test/reporters')
const files = process.argv.slice(2).map((file) => path.resolve(file))
run({ files, isolation: 'none', forceExit: true })
  .on('test:fail', () => {
    process.exitCode = 1
  })
  .compose(new Spec())
  .pipe(process.stdout)

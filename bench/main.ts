// `npm run bench -- NAME [options]`: a figure of ours beside its peer's, in turn, in one run. Nothing else should run on the machine.
import { spawnSync } from 'node:child_process'
import path from 'node:path'

const root = path.resolve(import.meta.dirname, '..')
const benches: Record<string, string> = { training: 'bench.training.run' }

const [name, ...options] = process.argv.slice(2)
const module = benches[name ?? '']
if (!module) {
  console.error(`Usage: npm run bench -- ${Object.keys(benches).join(' | ')} [options]`)
  process.exit(2)
}
const { status } = spawnSync(path.join(root, '.local/python/bin/python'), ['-m', module, ...options], { cwd: root, stdio: 'inherit' })
process.exit(status ?? 1)

// `./tunery`: the command line of a checkout.
import { existsSync } from 'node:fs'
import { enableCompileCache } from 'node:module'
import path from 'node:path'
import { root } from '../lib/root.ts'
import pkg from '../package.json' with { type: 'json' }

// Halves the time to start. In a checkout that set-up has made, where nobody else can write; it must be on before the imports.
if (existsSync(path.join(root, '.local/stamps'))) enableCompileCache(path.join(root, '.local/compile-cache'))

const [{ local }, { run }, { setInvocation }] = await Promise.all([
  import('./local/loaders.ts'),
  import('./run.ts'),
  import('./support/invocation.ts'),
])
setInvocation({
  name: './tunery',
  version: pkg.version,
  executable: path.join(root, 'tunery'),
  dataDir: path.resolve(process.env.TUNERY_DATA_DIR || path.join(root, 'data')),
})
await run(process.argv.slice(2), local)

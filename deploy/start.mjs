// What the service's image runs. The base models that the image brings are copied to where models are kept, as the
// image cannot be written: ./tunery models add brings others there, and the engine keeps copies of its own beside them.
import { cpSync, existsSync, globSync, mkdirSync, renameSync, rmSync } from 'node:fs'
import path from 'node:path'

const brought = path.resolve(import.meta.dirname, '../.local/models')
const kept = process.env.TUNERY_MODELS_DIR
if (kept && path.resolve(kept) !== brought)
  // A model's model.json is written last: a folder without one is no model.
  for (const file of globSync('*/*/model.json', { cwd: brought })) {
    const model = path.dirname(file)
    const to = path.join(kept, model)
    if (existsSync(path.join(to, 'model.json'))) continue
    const fresh = `${to}.new`
    rmSync(fresh, { recursive: true, force: true })
    rmSync(to, { recursive: true, force: true })
    mkdirSync(path.dirname(to), { recursive: true })
    cpSync(path.join(brought, model), fresh, { recursive: true, dereference: true })
    renameSync(fresh, to)
  }
await import('../server/main.ts')

import { describeConfig, readConfig } from '../../server/config.ts'
import type { GlobalOptions } from '../support/options.ts'

/** Lists every setting with its current value. */
export function config({ json }: GlobalOptions): void {
  const settings = describeConfig(readConfig(process.env))
  if (json) console.log(JSON.stringify(settings, null, 2))
  else for (const { name, value, about } of settings) console.log(`${`${name}=${value ?? ''}`.padEnd(52)} ${about}`)
}

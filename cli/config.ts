import { describeConfig, readConfig } from '../server/config.ts'

/** Lists every setting; values in force where the environment sets them. */
export function config(json: boolean): void {
  const settings = describeConfig(readConfig(process.env))
  if (json) console.log(JSON.stringify(settings, null, 2))
  else for (const { name, value, about } of settings) console.log(`${`${name}=${value ?? ''}`.padEnd(52)} ${about}`)
}

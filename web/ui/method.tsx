import { classes } from '../lib/classes.ts'

const colours: Record<string, string> = {
  GET: 'text-accent-ink',
  POST: 'text-good',
  PUT: 'text-warn',
  PATCH: 'text-warn',
  DELETE: 'text-bad',
}

/** The method of an HTTP request. */
export const MethodName = ({ method, className }: { method: string; className?: string }) => (
  <span className={classes('font-mono text-xs font-semibold', colours[method] ?? 'text-muted', className)}>
    {method}
  </span>
)

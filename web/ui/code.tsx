// Code to read and copy.
import { type ReactNode, useState } from 'react'
import { classes } from '../lib/classes.ts'
import { CopyButton } from './button.tsx'
import { Segments } from './toggles.tsx'

/** A block of code with a copy button. `wrap`: breaks long lines instead of scrolling. */
export function CodeBlock({
  code,
  title,
  wrap,
  maxHeight = '24rem',
  actions,
}: {
  code: string
  /** What it is: a file name or `Response`. Default: nothing is shown, and its name is `Code`. */
  title?: string
  wrap?: boolean
  maxHeight?: string
  actions?: ReactNode
}) {
  return (
    <div className="min-w-0 overflow-hidden rounded-lg bg-sunken ring-1 ring-line">
      <div
        className={classes(
          'flex items-center gap-2 pr-1 pl-3',
          title || actions ? 'h-9 border-b border-line' : 'float-right',
        )}
      >
        {title && <span className="min-w-0 flex-1 truncate text-sm text-muted">{title}</span>}
        {actions && <div className="min-w-0 flex-1">{actions}</div>}
        <CopyButton text={code} label={title ? `Copy ${title}` : 'Copy code'} />
      </div>
      <pre
        // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
        tabIndex={0}
        className={classes(
          'focus-inset overflow-auto p-3 font-mono text-sm',
          wrap && 'wrap-anywhere whitespace-pre-wrap',
        )}
        style={{ maxHeight }}
      >
        <code>{code}</code>
      </pre>
    </div>
  )
}

/** The same in several languages: `samples={[{ name: 'curl', code }, …]}`. */
export function CodeTabs({ samples, label }: { samples: { name: string; code: string }[]; label: string }) {
  const [name, setName] = useState(samples[0]?.name ?? '')
  const sample = samples.find((sample) => sample.name === name) ?? samples[0]
  if (!sample) return null
  return (
    <CodeBlock
      code={sample.code}
      actions={
        <Segments
          label={label}
          value={sample.name}
          onChange={setName}
          choices={samples.map((sample) => ({ value: sample.name, label: sample.name }))}
        />
      }
    />
  )
}

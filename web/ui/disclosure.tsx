// What is folded away, and what is dropped in.
import { ChevronRight, CircleHelp, Upload } from 'lucide-react'
import { type ReactNode, useRef, useState } from 'react'
import { classes } from '../lib/classes.ts'
import { Button, IconButton } from './button.tsx'
import { Popover } from './popups.tsx'

/** Folds details away. `quiet`: small, for what few people open. Its content is made when it is opened. */
export function Disclosure({
  summary,
  children,
  quiet,
  open = false,
}: {
  summary: ReactNode
  children: ReactNode
  quiet?: boolean
  open?: boolean
}) {
  const [isOpen, setOpen] = useState(open)
  return (
    <details open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)} className="group/details">
      <summary
        className={classes(
          'inline-flex list-none items-center gap-1 rounded-sm select-none hover:text-ink ' +
            '[&::-webkit-details-marker]:hidden',
          quiet ? 'text-sm text-muted' : 'font-medium',
        )}
      >
        <ChevronRight aria-hidden className="size-4 transition-transform duration-100 group-open/details:rotate-90" />
        {summary}
      </summary>
      {isOpen && <div className="pt-2.5">{children}</div>}
    </details>
  )
}

/** A word of the field, explained in a sentence: `<Help word="LoRA">…</Help>`. */
export function Help({ word, children }: { word: string; children: ReactNode }) {
  return (
    <Popover
      title={word}
      trigger={
        <IconButton
          label={`What is ${word}?`}
          size="sm"
          className="size-5! align-text-bottom"
          icon={<CircleHelp aria-hidden />}
        />
      }
    >
      <div className="text-muted">{children}</div>
    </Popover>
  )
}

/** A place to drop a file on, which is also a button. */
export function FileDrop({
  onFile,
  accept,
  title,
  note,
  busy,
}: {
  onFile: (file: File) => void
  /** As of an input: `.jsonl,.csv`. */
  accept?: string
  title: string
  note?: ReactNode
  busy?: boolean | undefined
}) {
  const input = useRef<HTMLInputElement>(null)
  const [over, setOver] = useState(false)
  const take = (files: FileList | null | undefined) => {
    const file = files?.[0]
    if (file && !busy) onFile(file)
  }
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: dropping is an extra; the button inside does the same
    <div
      onDragOver={(event) => {
        event.preventDefault()
        setOver(true)
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault()
        setOver(false)
        take(event.dataTransfer.files)
      }}
      className={classes(
        'flex flex-col items-center rounded-lg border border-dashed px-6 py-8 text-center transition-colors ' +
          'duration-100',
        over ? 'border-accent-ink bg-accent-soft' : 'border-edge',
      )}
    >
      <Upload aria-hidden className="mb-2 size-5 text-muted" />
      <p className="font-medium">{title}</p>
      {note && <p className="mt-1 max-w-md text-sm text-muted">{note}</p>}
      <input
        ref={input}
        type="file"
        accept={accept}
        aria-label={title}
        className="hidden"
        onChange={(event) => {
          take(event.target.files)
          // The same file may be chosen again, after it was mended.
          event.target.value = ''
        }}
      />
      <div className="mt-3">
        <Button busy={busy} onClick={() => input.current?.click()}>
          Choose a file
        </Button>
      </div>
    </div>
  )
}

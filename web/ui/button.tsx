// Buttons, and links that look like them.
import { createLink } from '@tanstack/react-router'
import { Check, Copy, LoaderCircle } from 'lucide-react'
import { type ComponentProps, type ReactNode, useEffect, useState } from 'react'
import { classes } from '../lib/classes.ts'
import { Tooltip } from './tooltip.tsx'

type Variant = 'primary' | 'secondary' | 'quiet' | 'danger'
export type Size = 'sm' | 'md'

const variants: Record<Variant, string> = {
  primary: 'bg-accent text-on-accent enabled:hover:bg-accent-hover',
  secondary: 'bg-surface text-ink ring-1 ring-inset ring-edge/60 hover:bg-hover',
  quiet: 'text-muted hover:bg-hover hover:text-ink',
  danger: 'bg-bad-fill text-white hover:opacity-90',
}
const sizes: Record<Size, string> = {
  sm: 'h-7 gap-1.5 px-2.5 text-sm any-pointer-coarse:h-9',
  md: 'h-8.5 gap-2 px-3.5 text-base any-pointer-coarse:h-10',
}

export const buttonClass = (variant: Variant = 'secondary', size: Size = 'md') =>
  classes(
    'inline-flex shrink-0 items-center justify-center rounded-md font-medium whitespace-nowrap select-none',
    'transition-colors duration-100 disabled:opacity-55 aria-disabled:opacity-55 [&_svg]:size-4 [&_svg]:shrink-0',
    variants[variant],
    sizes[size],
  )

interface ButtonProps extends Omit<ComponentProps<'button'>, 'size'> {
  variant?: Variant
  size?: Size
  icon?: ReactNode
  /** Shows a spinner and takes no further click, but keeps the focus. */
  busy?: boolean | undefined
}

/** Passes a click on unless the button is busy, or it is the second of a double click: what it makes is made once. */
const oneClick =
  (busy: boolean | undefined, onClick: ComponentProps<'button'>['onClick']): ComponentProps<'button'>['onClick'] =>
  (event) => {
    if (busy || event.detail > 1) event.preventDefault()
    else onClick?.(event)
  }

export function Button({ variant, size, icon, busy, children, className, onClick, ...rest }: ButtonProps) {
  return (
    <button
      type="button"
      {...rest}
      aria-busy={busy || undefined}
      aria-disabled={busy || undefined}
      onClick={oneClick(busy, onClick)}
      className={classes(buttonClass(variant, size), className)}
    >
      {busy ? <LoaderCircle aria-hidden className="animate-spin" /> : icon}
      {children}
    </button>
  )
}

interface AnchorProps extends ComponentProps<'a'> {
  variant?: Variant
  size?: Size
  icon?: ReactNode
}
function ButtonAnchor({ variant, size, icon, children, className, ...rest }: AnchorProps) {
  return (
    <a {...rest} className={classes(buttonClass(variant, size), className)}>
      {icon}
      {children}
    </a>
  )
}
/** A link to another page, as a button: `<LinkButton to="/jobs/new" variant="primary">New job</LinkButton>`. */
export const LinkButton = createLink(ButtonAnchor)

const linkClass =
  'rounded-sm text-accent-ink underline decoration-accent-ink/40 underline-offset-2 hover:decoration-accent-ink'
const quietLinkClass = 'rounded-sm decoration-edge underline-offset-2 hover:underline'

interface TextLinkProps extends ComponentProps<'a'> {
  /** In the colour of its text, underlined on hover: for names that are plainly links, as in lists. */
  quiet?: boolean
}
/** A link in text, to another page of the dashboard. */
export const TextLink = createLink(({ quiet, className, ...rest }: TextLinkProps) => (
  <a {...rest} className={classes(quiet ? quietLinkClass : linkClass, className)} />
))
/** A link in text that leaves the dashboard, such as to /docs. */
export function ExternalLink({ className, ...rest }: ComponentProps<'a'>) {
  return <a target="_blank" rel="noreferrer" {...rest} className={classes(linkClass, className)} />
}

interface IconButtonProps extends Omit<ComponentProps<'button'>, 'children'> {
  /** What it does: its name for screen readers and its tooltip. */
  label: string
  icon: ReactNode
  variant?: Variant
  size?: Size
}

export function IconButton({ label, icon, variant = 'quiet', size = 'md', className, ...rest }: IconButtonProps) {
  return (
    <Tooltip text={label}>
      <button
        type="button"
        aria-label={label}
        {...rest}
        className={classes(
          buttonClass(variant, size),
          size === 'sm' ? 'w-7 px-0! any-pointer-coarse:w-9' : 'w-8.5 px-0! any-pointer-coarse:w-10',
          className,
        )}
      >
        {icon}
      </button>
    </Tooltip>
  )
}

/** Copies a text and says that it did. */
export function CopyButton({
  text,
  label = 'Copy',
  size = 'sm',
}: {
  text: string
  label?: string | undefined
  size?: Size
}) {
  const [state, setState] = useState<'idle' | 'copied' | 'refused'>('idle')
  useEffect(() => {
    if (state === 'idle') return
    const timer = setTimeout(() => setState('idle'), 2000)
    return () => clearTimeout(timer)
  }, [state])
  const copy = () =>
    copyText(text).then(
      () => setState('copied'),
      () => setState('refused'),
    )
  const said = state === 'copied' ? 'Copied' : state === 'refused' ? 'Not allowed here: select the text' : label
  return (
    <>
      <IconButton
        label={said}
        size={size}
        onClick={copy}
        icon={state === 'copied' ? <Check aria-hidden className="text-good" /> : <Copy aria-hidden />}
      />
      <span role="status" className="sr-only">
        {state === 'idle' ? '' : said}
      </span>
    </>
  )
}

/**
 * Rejects where the browser refuses. The clipboard is there on https and localhost alone; elsewhere the old command
 * still works.
 */
export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text)
  const area = document.createElement('textarea')
  area.value = text
  area.className = 'fixed opacity-0'
  document.body.append(area)
  area.select()
  const done = document.execCommand('copy')
  area.remove()
  if (!done) throw new Error('refused')
}

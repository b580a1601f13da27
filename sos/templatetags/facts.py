"""The wording of ages, distances and positions, for templates."""

from django import template

from sos import wording

register = template.Library()
register.filter("ago", wording.ago)
register.filter("distance", wording.distance)
register.filter("coordinates", wording.coordinates)

#pragma once
// In place of the registry of class_loader: a function that makes an object of the library's only class.
#define PLUGINLIB_EXPORT_CLASS(Class, Base) \
    extern "C" Base *stand_in_make() { return new Class; }
